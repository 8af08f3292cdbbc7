//! What is shipped in deploy/: its configurations are right, and its versions are those of the program.

use std::path::{Path, PathBuf};

use crate::support::daemon::run_cli;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The literal block under this key of a YAML file.
fn block(yaml: &str, key: &str) -> String {
    let mut lines = yaml.lines().skip_while(|line| line.trim() != format!("{key}: |")).skip(1).peekable();
    let first = lines.peek().unwrap_or_else(|| panic!("no {key}"));
    let indent = first.len() - first.trim_start().len();
    assert!(indent > 0, "{key}");
    let inside = lines.take_while(|line| line.is_empty() || line.starts_with(&" ".repeat(indent)));
    inside.map(|line| format!("{}\n", line.get(indent..).unwrap_or_default())).collect()
}

/// A folder with the secrets that the manifests mount.
fn secrets() -> tempfile::TempDir {
    let folder = tempfile::TempDir::new().unwrap();
    for (name, value) in [
        ("amqp-url", "amqp://paced:secret@rabbitmq/%2f"),
        ("store-url", "redis://:secret@redis"),
        ("admin-token", "0123456789abcdef"),
        ("admin-read-token", "fedcba9876543210"),
    ] {
        std::fs::write(folder.path().join(name), value).unwrap();
    }
    folder
}

fn write(folder: &tempfile::TempDir, toml: &str) -> PathBuf {
    let file = folder.path().join("paced.toml");
    std::fs::write(&file, toml).unwrap();
    file
}

#[tokio::test]
async fn the_manifests_configuration_passes_the_check() {
    let folder = secrets();
    let toml = block(&read("deploy/kubernetes/paced.yaml"), "paced.toml");
    assert_eq!(toml.matches("\"/secrets/").count(), 4, "{toml}");
    let toml = toml.replace("\"/secrets/", &format!("\"{}/", folder.path().display()));
    let file = write(&folder, &toml);
    let output = run_cli(&["check", "-c", file.to_str().unwrap()], b"").await;
    assert_eq!(output.code, 0, "{}", output.stderr);
}

#[tokio::test]
async fn the_charts_configuration_passes_the_check_with_what_the_pod_adds() {
    let folder = secrets();
    let file = write(&folder, &block(&read("deploy/helm/paced/values.yaml"), "config"));
    // The environment variables that the template sets, as what overrides a file just the same.
    let pod = read("deploy/helm/paced/templates/deployment.yaml");
    let mut args = vec!["check".to_owned(), "-c".to_owned(), file.display().to_string()];
    for (name, key, value) in [
        ("PACED_ADMIN__LISTEN", "admin.listen", "0.0.0.0:9750".to_owned()),
        (
            "PACED_ADMIN__ALLOW_HOSTS",
            "admin.allow_hosts",
            "[\"paced\",\"paced.jobs.svc.cluster.local\"]".to_owned(),
        ),
        ("PACED_AMQP__URL_FILE", "amqp.url_file", "amqp-url".to_owned()),
        ("PACED_STORE__URL_FILE", "store.url_file", "store-url".to_owned()),
        ("PACED_ADMIN__TOKEN_FILE", "admin.token_file", "admin-token".to_owned()),
        ("PACED_ADMIN__READ_TOKEN_FILE", "admin.read_token_file", "admin-token".to_owned()),
    ] {
        assert!(pod.contains(&format!("- name: {name}\n")), "{name}");
        let is_file = key.ends_with("_file");
        let value = if is_file { folder.path().join(value).display().to_string() } else { value };
        args.extend(["--set".to_owned(), format!("{key}={value}")]);
    }
    assert_eq!(pod.matches("- name: PACED_").count(), 6, "a variable that is not tried here");
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let output = run_cli(&args, b"").await;
    assert_eq!(output.code, 0, "{}", output.stderr);
}

#[tokio::test]
async fn the_packages_configuration_asks_for_an_api_and_its_example_is_right() {
    let folder = tempfile::TempDir::new().unwrap();
    let toml = read("deploy/debian/paced.toml");
    let file = write(&folder, &toml);
    let output = run_cli(&["run", "-c", file.to_str().unwrap()], b"").await;
    assert_eq!(output.code, 78, "{}", output.stderr);
    assert!(output.stderr.contains("add a downstream"), "{}", output.stderr);
    let (head, example) = toml.split_once("# [downstreams.billing]\n").unwrap();
    let example: String =
        example.lines().map(|line| format!("{}\n", line.trim_start_matches(['#', ' ']))).collect();
    let file = write(&folder, &format!("{head}[downstreams.billing]\n{example}"));
    let output = run_cli(&["check", "-c", file.to_str().unwrap()], b"").await;
    assert_eq!(output.code, 0, "{}", output.stderr);
}

#[test]
fn all_have_the_version_of_the_program() {
    let version = env!("CARGO_PKG_VERSION");
    let chart = read("deploy/helm/paced/Chart.yaml");
    assert!(chart.contains(&format!("\nversion: {version}\n")), "{chart}");
    assert!(chart.contains(&format!("\nappVersion: \"{version}\"\n")), "{chart}");
    assert!(read("deploy/kubernetes/paced.yaml").contains(&format!("image: paced:{version}\n")));
    assert!(read("deploy/Dockerfile").contains(&format!("ARG VERSION={version}\n")));
}

/// A limit of systemd's that the daemon's own does not fit into ends drains and starts that are well.
#[test]
fn the_unit_leaves_the_daemon_its_time() {
    let unit = read("deploy/paced.service");
    let value = |key: &str| {
        let line = unit.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        line.unwrap_or_else(|| panic!("no {key}")).to_owned()
    };
    let seconds = |key: &str| value(key).parse::<u32>().unwrap();
    // The default of shutdown.drain_timeout, and what follows the drain.
    assert!(seconds("TimeoutStopSec") > 25 + 6);
    // Until the first sign of life, at half of the watchdog's time.
    assert!(seconds("TimeoutStartSec") > seconds("WatchdogSec"));
    assert_eq!(value("Type"), "notify");
    assert_eq!(value("RestartPreventExitStatus"), "78");
    // Whose exit status 78 systemd would answer by a restart.
    assert!(!unit.contains("\nExecStartPre="));
}

/// The package's script after an upgrade says so if the daemon does not come up, and not if it does.
#[test]
fn an_upgrade_tells_whether_the_daemon_came_up() {
    let folder = tempfile::TempDir::new().unwrap();
    let put = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        let mut rights = std::fs::metadata(&path).unwrap().permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut rights, 0o755);
        std::fs::set_permissions(&path, rights).unwrap();
        path
    };
    // A machine with systemd, whose tools do nothing but answer.
    let script =
        read("deploy/debian/postinst").replace("/run/systemd/system", &folder.path().display().to_string());
    let script = put("postinst", &script);
    put("getent", "#!/bin/sh\n");
    put("deb-systemd-helper", "#!/bin/sh\nexit 1\n");
    put("deb-systemd-invoke", "#!/bin/sh\nexit $RESTARTED\n");
    put("systemctl", "#!/bin/sh\n[ \"$1\" = is-active ] && echo \"$STATE\"\nexit 0\n");
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    for (restarted, state, expected) in [
        ("0", "active", ""),
        ("0", "inactive", ""),
        ("1", "active", ""),
        ("1", "failed", "the daemon did not start; journalctl -u paced says why"),
        ("124", "activating", "the daemon is not ready after 30 s, and still tries"),
    ] {
        let mut command = std::process::Command::new(&script);
        command
            .args(["configure", "0.1.0"])
            .env("PATH", &path)
            .env("RESTARTED", restarted)
            .env("STATE", state);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "an upgrade continues: {text}");
        assert!(
            text.contains(expected) && text.is_empty() == expected.is_empty(),
            "{restarted} {state}: {text}"
        );
    }
}

/// A signature is asked for by the name of the repository, the workflow and the tag, and never by a pattern.
#[test]
fn signatures_are_checked_by_exact_names() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let arguments = ["Owner/paced", "refs/tags/v1.2.3", "ghcr.io/owner/paced@sha256:00"];
    let output = std::process::Command::new(root.join("deploy/verify.sh")).args(arguments).output().unwrap();
    let notes = String::from_utf8(output.stdout).unwrap();
    let identity = "--certificate-identity https://github.com/Owner/paced/.github/workflows/release.yml@refs/tags/v1.2.3";
    assert_eq!(notes.matches(identity).count(), 2, "{notes}");
    assert!(
        notes.contains("ghcr.io/owner/paced@sha256:00")
            && root.join(".github/workflows/release.yml").exists()
    );
    let documented = read("docs/deploy.md");
    let ours = "https://github.com/OWNER/paced/.github/workflows/release.yml@refs/tags/v0.1.0";
    let asked = |command: &str| {
        let after = documented.split(&format!("    cosign {command} ")).nth(1).unwrap();
        after.lines().take(2).collect::<String>().contains(&format!("--certificate-identity {ours}"))
    };
    assert!(asked("verify-blob") && asked("verify"));
}

/// Each base image of the Dockerfile is named by what its tag means when the script runs.
#[test]
fn base_images_get_their_digests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::TempDir::new().unwrap();
    let docker = folder.path().join("docker");
    let run = |digest: &str| {
        std::fs::write(&docker, format!("#!/bin/sh\necho {digest}\n")).unwrap();
        let mut rights = std::fs::metadata(&docker).unwrap().permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut rights, 0o755);
        std::fs::set_permissions(&docker, rights).unwrap();
        let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
        let mut command = std::process::Command::new(root.join("deploy/base-images.sh"));
        let output = command.arg(root.join("deploy/Dockerfile")).env("PATH", path).output().unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    };
    let digest = format!("sha256:{}", "0f".repeat(32));
    let (is_done, output) = run(&digest);
    let names: Vec<&str> = output.lines().filter_map(|line| line.split('=').next()).collect();
    assert!(is_done && names == ["BUILD_IMAGE", "BASE_IMAGE"], "{output}");
    assert!(output.lines().all(|line| line.ends_with(&format!("@{digest}"))), "{output}");
    assert!(!run("no such manifest").0 && !run("sha256:12").0, "what is no digest is not passed on");
    // Every image is one of these, or a stage.
    let dockerfile = read("deploy/Dockerfile");
    let from = dockerfile.lines().filter(|line| line.starts_with("FROM "));
    assert!(from.clone().count() == 2 && from.clone().all(|line| line.contains("_IMAGE")), "{dockerfile}");
}

/// Names of registries are in lower case, for any name of the owner.
#[test]
fn the_image_is_named_in_lower_case() {
    let workflow = read(".github/workflows/release.yml");
    assert!(workflow.contains("image=ghcr.io/${GITHUB_REPOSITORY,,}"));
    assert!(!workflow.contains("ghcr.io/${{ github.repository"));
}

/// The user of the image may write where the compose file has it keep its pace, and one replica alone does.
#[test]
fn the_volume_of_a_store_belongs_to_the_image_s_user() {
    let (image, compose) = (read("deploy/Dockerfile"), read("deploy/compose.file.yaml"));
    let user = image.lines().find_map(|line| line.strip_prefix("USER ")).unwrap();
    let copied = format!("COPY --from=build --chown={user} /state /var/lib/paced\n");
    assert!(image.contains(&copied) && image.contains("install -d -m 0700 /state\n"), "{image}");
    for line in
        ["PACED_STORE__URL: file:/var/lib/paced/store", "volumes: [\"paced:/var/lib/paced\"]", "replicas: 1"]
    {
        assert!(compose.contains(&format!(" {line}\n")), "{line}");
    }
}
