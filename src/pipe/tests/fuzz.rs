//! Any bytes as an input: no panic, each bad line is reported once with its number, and nothing is sent for it.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Pieces of inputs, and bytes between them.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    let known = [
        "id,path,body\n",
        "customer_id,No,tenant\n",
        "{\"id\": \"a\", \"body\": {\"n\": 1}}\n",
        "{\"id\": \"b\", \"costs\": {\"tokens\": 3}, \"not_before\": 3600}\n",
        "{\"cost\": 1e400}\n",
        "17,a b/\u{fc},acme\n",
        ",,\n",
        "\"x\ny\",\"\"\"\",\n",
        "\n",
        "\r\n",
        "\"",
        "{",
        ",",
        "\u{feff}",
    ];
    let known = prop::sample::select(known.to_vec()).prop_map(|text| text.as_bytes().to_vec());
    prop_oneof![4 => known, 1 => vec(any::<u8>(), 0..12)]
}

fn format() -> impl Strategy<Value = Format> {
    let template = Template {
        path: Some("customers/{customer_id}".parse().expect("a pattern")),
        body_from_row: true,
        id: Some("No".to_owned()),
        headers: vec![("x-tenant".to_owned(), "{tenant}".parse().expect("a pattern"))],
    };
    prop::sample::select(vec![Format::Ndjson, Format::Csv(Template::default()), Format::Csv(template)])
}

/// Reads all of the input, and delivers each job: the totals, and the beginnings of the notices.
async fn read(input: Vec<u8>, format: Format) -> Option<(u64, Totals, Vec<String>)> {
    let whole = recognise(io::Cursor::new(input), &format).await.expect("readable").ok()?;
    let records = Records::open(whole, &format).await.ok()?;
    let notices = Notices::default();
    let (mut source, writer) = open(records, tokio::io::sink(), PipeOptions::default(), notices.notify());
    let mut jobs = 0;
    let all = async {
        while let Some(delivery) = source.next().await {
            jobs += 1;
            ack(delivery);
        }
        drop(source);
    };
    let (totals, ()) = tokio::join!(writer.run(), all);
    let begins = |notice: String| notice.split(':').next().unwrap_or_default().to_owned();
    Some((jobs, totals.expect("written"), notices.all().into_iter().map(begins).collect()))
}

proptest! {
    #[test]
    fn any_bytes_are_jobs_or_bad_lines(pieces in vec(piece(), 0..20), format in format()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
        if let Some((jobs, totals, notices)) = runtime.block_on(read(pieces.concat(), format)) {
            prop_assert_eq!(totals.delivered, jobs);
            prop_assert_eq!(totals.skipped, notices.len() as u64, "{:?}", notices);
            prop_assert!(notices.iter().all(|notice| notice.starts_with("line ")), "{:?}", notices);
            let lines: BTreeSet<&String> = notices.iter().collect();
            prop_assert_eq!(lines.len(), notices.len(), "each once: {:?}", notices);
        }
    }
}
