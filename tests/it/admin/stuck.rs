//! A daemon one of whose dispatchers does not run is not alive.

use super::*;

#[tokio::test]
async fn a_daemon_is_not_alive_while_the_loop_of_a_dispatcher_is_held() {
    let site = Site::shared("stuck", "rate = '100/s'").await;
    let config = format!("{}{ADMIN}", site.config());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("held");
    let envs = [("PACED_TEST_HASTE", "20"), ("PACED_TEST_HOLD", file.to_str().unwrap())];
    let paced = Paced::start(&config, &[], &envs).await;
    let line = paced.wait_line("probes and metrics are served", LONG).await;
    let line: Value = serde_json::from_str(&line).unwrap();
    let watched = Watched { address: line["address"].as_str().unwrap().to_owned(), paced };
    watched.readyz(200).await;
    assert_eq!(watched.get("/livez").await, (200, "ok\n".to_owned()));

    std::fs::write(&file, "").unwrap();
    let stuck = (503, "a dispatcher is stuck; the log names it\n".to_owned());
    until("it is not alive", LONG, async || watched.get("/livez").await == stuck).await;
    let line = watched.paced.wait_line("the dispatcher is stuck", LONG).await;
    assert!(line.contains("\"downstream\":\"billing\""), "{line}");

    std::fs::remove_file(&file).unwrap();
    until("it is alive again", LONG, async || watched.get("/livez").await.0 == 200).await;
    watched.paced.wait_line("the dispatcher runs again", LONG).await;
    assert_eq!(watched.paced.stop().await, 0);
}
