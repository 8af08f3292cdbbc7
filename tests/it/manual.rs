//! `paced completions` and `paced man`: all of the command line is in them.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};

use tempfile::tempdir;
use tokio::sync::OnceCell;

use crate::support::daemon::{run_cli, run_cli_in};

/// The commands below this one, as its help lists them.
async fn commands(command: &[&str]) -> Vec<String> {
    let args: Vec<&str> = command.iter().copied().chain(["--help"]).collect();
    let help = run_cli(&args, b"").await;
    assert_eq!(help.code, 0, "{}", help.stderr);
    let listed = help.stdout.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed = listed.take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("   "));
    let names = listed.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help");
    names.map(str::to_owned).collect()
}

/// Each command, as words.
async fn all_commands() -> &'static BTreeSet<String> {
    static ALL: OnceCell<BTreeSet<String>> = OnceCell::const_new();
    ALL.get_or_init(async || {
        let mut all = BTreeSet::new();
        for name in commands(&[]).await {
            for below in commands(&[&name]).await {
                all.insert(format!("{name} {below}"));
            }
            all.insert(name);
        }
        assert!(all.len() > 20, "{all:?}");
        all
    })
    .await
}

#[tokio::test]
async fn each_shell_completes_each_command() {
    let all = all_commands().await;
    for shell in ["bash", "zsh", "fish"] {
        let output = run_cli(&["completions", shell], b"").await;
        assert_eq!((output.code, output.stderr.as_str()), (0, ""), "{shell}");
        for command in all {
            let words = command.replace(' ', "__subcmd__");
            let expected = match shell {
                "bash" => format!("cmd=\"paced__subcmd__{}\"", words.replace('-', "__subcmd__")),
                "zsh" => format!("_paced__subcmd__{words}_commands()"),
                _ => format!(" -a \"{}\"", command.rsplit(' ').next().unwrap()),
            };
            assert!(output.stdout.contains(&expected), "{shell}: {command}: {expected}");
        }
        for option in ["log-jobs", "online", "set"] {
            assert!(output.stdout.contains(option), "{shell}: {option}");
        }
        // Where the shell is there, it says whether it understands.
        let mut child =
            match Command::new(shell).arg("-n").stdin(Stdio::piped()).stderr(Stdio::piped()).spawn() {
                Ok(child) => child,
                Err(error) => {
                    println!("{shell} is not there to judge its completions: {error}");
                    continue;
                }
            };
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), output.stdout.as_bytes()).unwrap();
        let judged = child.wait_with_output().unwrap();
        assert!(judged.status.success(), "{shell}: {}", String::from_utf8_lossy(&judged.stderr));
    }
    assert_eq!(run_cli(&["completions", "cobol"], b"").await.code, 2);
}

#[tokio::test]
async fn each_command_has_a_page() {
    let folder = tempdir().unwrap();
    let output = run_cli_in(folder.path(), &["man", "--dir", "share/man1"], b"").await;
    assert_eq!((output.code, output.stderr.as_str()), (0, ""));
    let pages: BTreeSet<String> = fs::read_dir(folder.path().join("share/man1"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let mut expected: BTreeSet<String> =
        all_commands().await.iter().map(|command| format!("paced-{}.1", command.replace(' ', "-"))).collect();
    expected.insert("paced.1".to_owned());
    assert_eq!(pages, expected);
    assert_eq!(output.stdout.lines().count(), pages.len(), "{}", output.stdout);
    let page = |name: &str| fs::read_to_string(folder.path().join("share/man1").join(name)).unwrap();
    assert!(page("paced.1").contains("Exit codes: 0 ok"), "{}", page("paced.1"));
    let replay = page("paced-dead-replay.1");
    assert!(replay.starts_with(".") && replay.contains(".SH OPTIONS") && replay.contains("rate"), "{replay}");
    // They are written again over themselves, as an upgrade does.
    assert_eq!(run_cli_in(folder.path(), &["man", "--dir", "share/man1"], b"").await.code, 0);

    fs::write(folder.path().join("file"), "").unwrap();
    let refused = run_cli_in(folder.path(), &["man", "--dir", "file/man1"], b"").await;
    assert!(refused.code == 1 && refused.stderr.contains("cannot write to file/man1"), "{}", refused.stderr);
}
