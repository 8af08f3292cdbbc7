//! When a token that is refused is replaced, and when a request for one that failed is repeated.

use super::*;

#[tokio::test(start_paused = true)]
async fn tokens_that_are_all_refused_are_replaced_ever_more_rarely() {
    let client = OAuth2Client::new(OAuth2Options {
        token_url: "http://localhost/token".to_owned(),
        client_id: "paced".to_owned(),
        client_secret: "secret".to_owned(),
        read_secret: None,
        scopes: Vec::new(),
        params: BTreeMap::new(),
        client_auth: ClientAuth::Basic,
        timeout: Duration::from_secs(1),
        tls: None,
        proxy: None,
        read_proxy: None,
    });
    let (shared, start) = (client.unwrap().0, Instant::now());
    let gives_up = |seconds: u32| {
        let value = hyper::header::HeaderValue::from_static("Bearer x");
        let now = start + SECOND * seconds;
        shared.give_up(&Token::new(value, now, SECOND * 3600, 0.5), now)
    };
    // One that is refused as soon as that may be: each time is twice the one before.
    let given_up: Vec<u32> = (0..1000).filter(|seconds| gives_up(*seconds)).collect();
    assert_eq!(given_up, [0, 10, 30, 70, 150, 310, 470, 630, 790, 950]);
    // One that was good for a long time is replaced at once, and so is the next after ten seconds.
    assert!(gives_up(2000) && !gives_up(2009) && gives_up(2021));
}

#[test]
fn requests_that_fail_are_repeated_later_each_time() {
    let error = TokenError::TooLate(Duration::from_secs(1));
    let millis = |failures, chance| backoff(failures, &error, chance).as_millis();
    assert_eq!((millis(1, 0.0), millis(1, 1.0)), (250, 500));
    assert_eq!((millis(3, 0.0), millis(3, 1.0)), (1000, 2000));
    assert_eq!((millis(u32::MAX, 0.0), millis(u32::MAX, 1.0)), (7500, 15_000));
    let asked = |seconds| {
        let after = Some(Duration::from_secs(seconds));
        let error = TokenError::Refused { answer: "429".to_owned(), after };
        backoff(1, &error, 1.0)
    };
    assert_eq!(asked(7), Duration::from_secs(7));
    assert_eq!(asked(100_000), LONGEST_AFTER, "a token server does not stop jobs for a day");
    assert_eq!(asked(0), Duration::from_millis(500));
}
