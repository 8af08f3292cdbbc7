use super::*;
use crate::limit::Limit;

#[test]
fn the_window_is_what_a_minute_releases() {
    let prefetch = |limits: &[(&str, u32)], prefetch: u16| {
        let limits = limits.iter().enumerate().map(|(index, (rate, burst))| {
            Limit::leaky_bucket(index.to_string(), rate.parse().unwrap(), *burst).unwrap()
        });
        let downstream = Downstream {
            limits: LimitSet::new(limits.collect()).unwrap(),
            plans: Vec::new(),
            on_limit: OnLimit::Wait,
            on_unavailable: OnUnavailable::Hold,
            revision: None,
            horizon: Duration::from_millis(100),
            max_wait: None,
            hold_max: Duration::from_secs(60),
            max_cost: None,
            costs: Vec::new(),
            concurrency: 64,
            queue: Queue { name: None, max_length: None, prefetch, prefetch_bytes: 64 << 20 },
            http: Http {
                base_url: Secret::new("http://localhost/"),
                timeout: Duration::from_secs(30),
                max_connection_age: Duration::from_secs(90),
                max_body: 1,
                allow_headers: Vec::new(),
                methods: vec!["POST".to_owned()],
                encoded_slash: false,
                keep_response: true,
                proxy: None,
                oauth2: None,
                headers: Vec::new(),
            },
            retry: RetryPolicy::default(),
            lanes: Lanes { default_plan: None, parts: vec![], rules: None },
            tls: None,
        };
        downstream.effective_prefetch()
    };
    assert_eq!(prefetch(&[("50/s", 1)], 1000), 1000);
    assert_eq!(prefetch(&[("10/s", 1)], 1000), 600);
    assert_eq!(prefetch(&[("1/h", 1)], 1000), 1);
    assert_eq!(prefetch(&[("1/7s", 1)], 1000), 9);
    assert_eq!(prefetch(&[("1/m", 5)], 1000), 5);
    assert_eq!(prefetch(&[("50/s", 1), ("2/s", 1)], 1000), 120);
    assert_eq!(prefetch(&[("1000000/s", u32::MAX)], 65_535), 65_535);
}
