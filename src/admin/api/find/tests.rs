use paced::api::Millis;
use paced::api::find::Bound;
use paced::api::state::{Downstream, Queues};

use super::*;

const NOW: Millis = 1_764_000_000_000;

fn found(jobs: Vec<Job>) -> Found {
    Found { id: Some("a".to_owned()), now: NOW, replica: "r1".to_owned(), jobs, ..Found::default() }
}

fn downstream() -> Downstream {
    let queues = Queues { queued: Some(0), parked: Some(0), dead: Some(0), ..Queues::default() };
    Downstream { name: "billing".to_owned(), queues, ..Downstream::default() }
}

#[test]
fn a_query_names_one_id_or_one_lane() {
    let id = |id: &str| Question::Id(id.to_owned());
    let lane = |lane: &str| Question::Lane(lane.to_owned());
    assert_eq!(sought("id=a%2Fb+c"), Ok((id("a/b c"), false)));
    assert_eq!(sought("others=true&id=a"), Ok((id("a"), true)));
    assert_eq!(sought("id=a&others=false"), Ok((id("a"), false)));
    assert_eq!(sought("lane=endpoint%3Dx%26tenant%3Da&others=true"), Ok((lane("endpoint=x&tenant=a"), true)));
    assert_eq!(sought("lane="), Ok((lane(""), false)), "the lane of jobs without any part");
    for whole in [format!("id={}", "x".repeat(255)), format!("lane={}", "x".repeat(4096))] {
        assert!(sought(&whole).is_ok());
    }
    for query in [
        "",
        "id=",
        "ids=a",
        "id=a&id=b",
        "id=a&lane=b",
        "lane=a&id=b",
        "lane=a&lane=b",
        "id=a&x=1",
        "id=a&others=1",
        "others=true",
        &format!("id={}", "x".repeat(256)),
        &format!("lane={}", "x".repeat(4097)),
    ] {
        let refusal = sought(query).unwrap_err();
        assert_eq!((refusal.status().as_u16(), refusal.text().contains("?id=ID")), (400, true), "{query}");
    }
}

#[test]
fn what_is_held_here_is_said_and_what_binds() {
    let replica = || "r1".to_owned();
    let job = |place: &str, at: Option<Millis>| Job {
        replica: replica(),
        place: place.to_owned(),
        at,
        ..Job::default()
    };
    let turn = Some(Turn { waiting: 60, ahead: 41, before: 50, ..Turn::default() });
    let binding = Some(Bound { text: "the limit l (1/s)".to_owned(), ..Bound::default() });
    let waiting = Job { turn, binding, attempts: Some(0), ..job("waiting", Some(NOW)) };
    let expected = [
        "it waits for a slot at replica r1, behind 50 job(s) there, and may go at about 2025-11-24T16:00:00Z",
        "what holds it back: the limit l (1/s)",
    ];
    assert_eq!(lines(&found(vec![waiting.clone()]), &downstream()), expected);
    let another = Job { turn: None, at: None, ..waiting.clone() };
    let both = lines(&found(vec![waiting.clone(), another]), &downstream());
    assert_eq!(both, [expected[0], expected[1], "it waits for a slot at replica r1"], "each reason once");
    let paused = Job { at: None, ..waiting.clone() };
    assert!(lines(&found(vec![paused]), &downstream())[0].ends_with("job(s) there"));
    let turn = waiting.turn.clone().map(|turn| Turn { lane: Some("tenant=a".to_owned()), ..turn });
    let next = Job { id: "7".to_owned(), turn, ..waiting };
    let of_lane = Found { id: None, lane: Some("tenant=a".to_owned()), ..found(vec![next]) };
    assert_eq!(
        lines(&of_lane, &downstream())[0],
        "job 7: it waits for a slot at replica r1, behind 41 of the 60 job(s) of its lane tenant=a there, and 50 of all lanes, \
         and may go at about 2025-11-24T16:00:00Z"
    );
    for (job, expected) in [
        (job("delayed", Some(NOW)), "replica r1 holds it until 2025-11-24T16:00:00Z"),
        (
            Job { attempts: Some(2), ..job("retrying", Some(NOW)) },
            "replica r1 holds it for its next attempt at 2025-11-24T16:00:00Z; 2 attempt(s) so far",
        ),
        (job("held", Some(NOW)), "it has the slot of 2025-11-24T16:00:00Z at replica r1"),
        (job("sending", None), "replica r1 is sending, settling or parking it"),
        (job("halted", None), "replica r1 holds it until the API can be used again"),
    ] {
        assert_eq!(lines(&found(vec![job]), &downstream()), [expected]);
    }
}

#[test]
fn where_it_may_be_is_said_if_it_is_not_here() {
    let nowhere = found(Vec::new());
    let here = "replica r1 does not hold it, and has not parked it lately";
    assert_eq!(lines(&nowhere, &downstream()), [here]);
    let others = Found { not_asked: vec!["r2".to_owned(), "r3".to_owned()], ..nowhere.clone() };
    let mut busy = downstream();
    busy.queues = Queues { queued: Some(12), parked: None, dead: Some(3), ..Queues::default() };
    assert_eq!(
        lines(&others, &busy),
        [
            here,
            "these replicas were not asked, or did not answer, and may hold it: r2, r3",
            "RabbitMQ has 12 queued and an unknown number of parked job(s), which nobody can look through",
            "`paced dead list billing --id a` looks through 3 dead letter(s)",
        ]
    );
    let of_lane = Found { id: None, lane: Some("tenant=a".to_owned()), ..others };
    assert_eq!(
        lines(&of_lane, &busy),
        [
            "no job of the lane `tenant=a` waits for a slot at replica r1; a lane is written with all of its parts, as \
             `paced status billing` shows it",
            "these replicas were not asked, or did not answer, and may hold such jobs: r2, r3",
            "RabbitMQ has 12 queued and an unknown number of parked job(s), which nobody can look through",
        ]
    );
    let (replica, reason) = ("r1".to_owned(), "retry".to_owned());
    let parked = Parked { replica, at: NOW, until: NOW + 60_000, reason };
    let parked = Found { parked: Some(parked), cancelled: true, ..nowhere };
    assert_eq!(
        lines(&parked, &downstream()),
        [
            "replica r1 parked it at 2025-11-24T16:00:00Z until about 2025-11-24T16:01:00Z (retry): it is in RabbitMQ, or \
             another replica has taken it since",
            "its id is cancelled: no replica sends it",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn one_request_at_a_time_asks_and_one_that_is_given_up_holds_its_turn() {
    let seeker = Seeker::new(Dispatchers::default());
    let refusal = seeker.dispatcher("billing").unwrap_err();
    assert!(refusal.status() == 503 && refusal.text().contains("does not answer"), "{refusal:?}");
    assert_eq!(refusal.retry_after(), Some(1));
    let nothing = async || seeker.in_turn(async { dispatch::Found::default() }).await.unwrap();
    let start = Instant::now();
    for _ in 0..4 {
        nothing().await;
    }
    assert!(start.elapsed() >= 4 * SPACING, "{:?}", start.elapsed());
    let start = Instant::now();
    let costly = async {
        sleep(SPACING / 10).await;
        dispatch::Found::default()
    };
    seeker.in_turn(costly).await.unwrap();
    assert!(start.elapsed() >= 2 * SPACING, "the loop may be busy for as long: {:?}", start.elapsed());
    let start = Instant::now();
    let given_up = timeout(Duration::from_millis(10), seeker.in_turn(std::future::pending())).await;
    assert!(given_up.is_err());
    nothing().await;
    let took = start.elapsed();
    assert!(took >= ANSWER_TIMEOUT + 2 * SPACING, "{took:?}");
    assert!(took < TURN_TIMEOUT, "a dispatcher that does not answer keeps nobody out: {took:?}");
    assert!(seeker.in_turn(std::future::pending()).await.is_err());
}
