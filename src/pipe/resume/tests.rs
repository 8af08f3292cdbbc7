use super::super::records::Format;
use super::*;

fn outcome(line: u64, id: &str, outcome: &str) -> String {
    format!("{{\"line\":{line},\"id\":\"{id}\",\"outcome\":\"{outcome}\",\"attempts\":1}}\n")
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), text).expect("written");
    file
}

#[test]
fn a_half_written_line_is_removed_wherever_it_broke_off() {
    let (one, two) = (outcome(1, "a", "delivered"), outcome(2, "b", "delivered"));
    for cut in 0..two.len() {
        let file = file(&format!("{one}{}", &two[..cut]));
        let resumed = resume(file.path()).expect("resumed");
        // A line without its line feed is whole too.
        let whole = cut == two.len() - 1;
        let done: Vec<Option<Done>> = resumed.outcomes.earlier.values().map(|job| job.done).collect();
        assert_eq!(done, vec![Some(Done::Delivered); if whole { 2 } else { 1 }], "{cut}");
        assert_eq!(resumed.was_torn, cut > 0 && !whole, "{cut}");
        let mut appended = resumed.file;
        appended.write_all(outcome(3, "c", "dead").as_bytes()).expect("written");
        drop(appended);
        let text = std::fs::read_to_string(file.path()).expect("text");
        let kept = if whole { two.as_str() } else { "" };
        assert_eq!(text, format!("{one}{kept}{}", outcome(3, "c", "dead")), "{cut}");
    }
}

#[test]
fn files_of_others_are_refused_and_stay_as_they_are() {
    let twice = outcome(1, "a", "dead") + &outcome(1, "b", "dead");
    for (text, problem) in [
        ("{\"id\": \"a\"}\n", "line 1 is no outcome"),
        ("notes", "line 1 is no outcome"),
        (&*(outcome(1, "a", "dead") + "notes"), "line 2 is no outcome"),
        (
            &*(outcome(1, "a", "dead")[..20].to_owned() + "\n" + &outcome(2, "b", "dead")),
            "line 1 is no outcome",
        ),
        (&*twice, "line 2 names another job"),
    ] {
        let file = file(text);
        let error = resume(file.path()).expect_err(text).to_string();
        assert!(error.starts_with(problem), "{text}: {error}");
        assert_eq!(std::fs::read_to_string(file.path()).expect("text"), text);
    }
}

#[test]
fn one_run_at_a_time() {
    let file = file("");
    let first = resume(file.path()).expect("resumed");
    assert!(matches!(resume(file.path()), Err(ResumeError::Locked)));
    drop(first);
    assert!(resume(file.path()).is_ok());
}

fn outcomes(text: &str) -> Outcomes {
    resume(file(text).path()).expect("resumed").outcomes
}

#[test]
fn what_was_delivered_or_cancelled_is_skipped_and_the_rest_is_sent_again() {
    let generated = Uuid::now_v7().to_string();
    let text = [
        outcome(1, "a", "delivered"),
        outcome(2, "b", "dead"),
        outcome(4, &generated, "rejected"),
        outcome(5, "e", "dead"),
        outcome(5, "e", "delivered"),
        outcome(6, "f", "dead"),
        outcome(6, "f", "cancelled"),
    ];
    let mut outcomes = outcomes(&text.concat());
    assert_eq!(outcomes.step(1, Some("a")), Ok(Step::Skip(Done::Delivered)));
    assert_eq!(outcomes.step(2, Some("b")), Ok(Step::SendAgain("b".to_owned())));
    assert_eq!(outcomes.step(3, Some("c")), Ok(Step::Send));
    assert_eq!(outcomes.step(4, None), Ok(Step::SendAgain(generated)));
    assert_eq!(outcomes.step(5, Some("e")), Ok(Step::Skip(Done::Delivered)));
    assert_eq!(outcomes.step(6, Some("f")), Ok(Step::Skip(Done::Cancelled)));
    assert_eq!(outcomes.end(), Ok(()));
}

#[tokio::test]
async fn another_input_is_refused_before_anything_is_sent() {
    let input = "{\"id\": \"a\"}\n\n{}\n{\"id\": \"d\"}\nnonsense\n";
    for (text, expected) in [
        (outcome(1, "a", "delivered"), Ok(4)),
        (
            outcome(1, "x", "delivered"),
            Err("line 1 of the input is job a, and the outcome there is that of job x;"),
        ),
        (
            outcome(3, "c", "dead"),
            Err("line 3 of the input is a job without an id, and the outcome there is that of job c;"),
        ),
        (
            outcome(2, "b", "dead"),
            Err("line 2 of the input is no job, and there is an outcome of job b for it;"),
        ),
        (
            outcome(5, "e", "dead"),
            Err("line 5 of the input is no job, and there is an outcome of job e for it;"),
        ),
        (
            outcome(9, "i", "dead"),
            Err("line 9 of the input is no job, and there is an outcome of job i for it;"),
        ),
    ] {
        let records = Records::open(input.as_bytes(), &Format::Ndjson).await.expect("readable");
        let found = survey(records, &outcomes(&text)).await.expect("readable");
        match (found, expected) {
            (Ok(count), Ok(expected)) => assert_eq!(count, expected),
            (Err(mismatch), Err(problem)) => {
                assert!(mismatch.to_string().starts_with(problem), "{mismatch}");
            }
            (found, expected) => panic!("{found:?} where {expected:?}"),
        }
    }
}
