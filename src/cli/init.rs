//! `paced init`: a first configuration, from options or from answers to a few questions.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::{self, OpenOptions};
use std::io::{self, BufRead as _, Write as _};
use std::path::{Path, PathBuf};

use paced::config;

use super::exit::Exit;
use super::{Global, confirm, out};
use field::Field;

mod field;
mod render;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Name of the API: the name of the downstream, and the routing key of its jobs
    #[arg(long, value_name = "NAME")]
    downstream: Option<String>,
    /// URL of the API; a job's path is appended behind one slash
    #[arg(long, value_name = "URL")]
    base_url: Option<String>,
    /// Limit of the API: COUNT/UNIT, such as 50/s or 1000/minute; jobs are spaced evenly. It may be left out with --limit
    #[arg(long)]
    rate: Option<String>,
    /// A further limit of the API, such as 5000/day (a quota by the calendar in UTC) or 1000/hour (in any hour); may be repeated
    #[arg(long = "limit", value_name = "RATE")]
    limits: Vec<String>,
    /// How much arrivals at the API may jitter, such as 50ms, if it counts in any window [default: 0s]
    #[arg(long, value_name = "DURATION")]
    margin: Option<String>,
    /// RabbitMQ [default: amqp://127.0.0.1:5672/%2f]
    #[arg(long, value_name = "URL")]
    broker: Option<String>,
    /// Where the pace is kept: redis://HOST, or for only one process file:PATH or memory: [default: file:paced.store, beside the configuration; file:/var/lib/paced/store for one below /etc]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// An existing queue to take the jobs from [default: paced's own, paced.jobs.NAME]
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    /// Writes to this file, not to stdout; a URL with a password, or a base URL with a query, is written to another file
    /// beside it
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Replaces files that exist
    #[arg(long)]
    force: bool,
}

/// What was given for each field, or is its default. A field without either is absent.
type Answers = BTreeMap<Field, String>;

pub(super) fn run(global: &Global, args: &Args) -> Result<(), Exit> {
    // The user is not asked for answers that cannot be written.
    if let Some(file) = args.file.as_deref().filter(|file| !args.force && file.symlink_metadata().is_ok()) {
        return Err(exists(file));
    }
    let answers = answers(args)?;
    let document = render::document(&answers, &args.limits);
    if let Err(errors) = config::load_text("configuration", &document, Path::new("")) {
        out::say(&errors);
        return Err(Exit::Usage);
    }
    let secrets = render::secrets(&answers);
    let Some(file) = &args.file else {
        for secret in &secrets {
            out::say(format_args!(
                "paced: warning: the {} of {} is not written; give the whole URL as {}, or in a file as {}_file",
                secret.part,
                secret.key,
                secret.variable(),
                secret.key
            ));
        }
        return out::raw(render::file(&answers, &args.limits, false).as_bytes());
    };
    let folder = file.parent().unwrap_or(Path::new(""));
    let secrets =
        secrets.iter().map(|secret| (folder.join(secret.file), format!("{}\n", secret.text), 0o600));
    let mut files: Vec<(PathBuf, String, u32)> = secrets.collect();
    let token = folder.join(render::TOKEN_FILE);
    // A file that exists may be that of another configuration of this daemon.
    if token.symlink_metadata().is_err() {
        let text = new_token().map_err(|error| {
            out::fail(Exit::Failed, format_args!("cannot read random bytes for a token: {error}"))
        })?;
        files.push((token, text, 0o600));
    }
    files.push((file.clone(), render::file(&answers, &args.limits, true), 0o644));
    // All are looked for before any is written, so that no secret is left behind without the file that names it.
    if let Some((there, ..)) = files.iter().find(|(path, ..)| !args.force && path.symlink_metadata().is_ok())
    {
        return Err(exists(there));
    }
    for (path, text, mode) in &files {
        write(path, text, *mode, args.force)?;
    }
    files.iter().rev().try_for_each(|(path, ..)| out::path(global.output, path))?;
    say_next(&file.display(), answers.get(&Field::Downstream).map_or("", String::as_str));
    Ok(())
}

/// Says which commands come next.
fn say_next(file: &impl Display, downstream: &str) {
    out::say(format_args!(
        "paced: next:\n  paced check --online -c {file}    # are the servers there?\n  paced run -c {file}\n\
         and while it runs, in another terminal:\n  paced publish {downstream} --body '{{}}' -c {file}    # sends a job to the API\n  \
         paced status -c {file}"
    ));
}

/// A token of 32 random bytes, as text.
fn new_token() -> io::Result<String> {
    let mut bytes = [0; 32];
    io::Read::read_exact(&mut fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).chain(["\n".to_owned()]).collect())
}

/// The answers of the arguments, and those that are typed where one is missing that has no default.
fn answers(args: &Args) -> Result<Answers, Exit> {
    let mut answers = Answers::new();
    for field in Field::ALL {
        if let Some(given) = field.given(args) {
            render::check(field, given, &answers)
                .map_err(|problem| out::fail(Exit::Usage, format_args!("{}: {problem}", field.option())))?;
            answers.insert(field, given.clone());
        }
    }
    // The API may have only windows and quotas, and no rate.
    let has_no_pace = !args.limits.is_empty() && !answers.contains_key(&Field::Rate);
    if has_no_pace && answers.contains_key(&Field::Margin) {
        return Err(out::fail(Exit::Usage, "--margin belongs to --rate; give --rate too"));
    }
    let is_moot = |field: Field| has_no_pace && matches!(field, Field::Rate | Field::Margin);
    let is_missing = |field: &Field| field.is_required() && !is_moot(*field) && !answers.contains_key(field);
    let missing: Vec<&str> = Field::ALL.into_iter().filter(is_missing).map(Field::option).collect();
    if !missing.is_empty() {
        if !confirm::is_possible() {
            let problem = format!(
                "nobody can be asked here, since this is no terminal; give {}, such as --downstream billing \
                 --base-url https://api.example.com/v1/ --rate 50/s",
                missing.join(", ")
            );
            return Err(out::fail(Exit::Usage, problem));
        }
        for field in Field::ALL {
            if !is_moot(field)
                && !answers.contains_key(&field)
                && let Some(answer) = ask(field, &answers)?
            {
                answers.insert(field, answer);
            }
        }
    }
    for field in Field::ALL {
        if let Some(default) = field.default(args.file.as_deref()) {
            answers.entry(field).or_insert_with(|| default.to_owned());
        }
    }
    Ok(answers)
}

/// Asks until the answer can be used. An empty one means the default, if there is one.
fn ask(field: Field, given: &Answers) -> Result<Option<String>, Exit> {
    loop {
        out::say(field.question());
        let mut line = String::new();
        match io::stdin().lock().read_line(&mut line) {
            Ok(1..) => {}
            // The input has ended, or cannot be read.
            _ => return Err(out::fail(Exit::Usage, "nothing was written")),
        }
        let answer = line.trim();
        if answer.is_empty() && !field.is_required() {
            return Ok(None);
        }
        match render::check(field, answer, given) {
            Ok(()) => return Ok(Some(answer.to_owned())),
            Err(problem) => out::say(format_args!("  {problem}")),
        }
    }
}

fn exists(file: &Path) -> Exit {
    out::fail(Exit::Usage, format_args!("{} is there already; --force replaces it", file.display()))
}

/// Writes a file that is not there yet, or with `force` over one that is.
fn write(file: &Path, text: &str, mode: u32, force: bool) -> Result<(), Exit> {
    use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
    let mut options = OpenOptions::new();
    options.write(true).mode(mode);
    if force {
        options.create(true).truncate(true)
    } else {
        options.create_new(true)
    };
    let written = options.open(file).and_then(|mut opened| {
        // A file that existed may have other permissions.
        if force && mode == 0o600 {
            opened.set_permissions(fs::Permissions::from_mode(mode))?;
        }
        opened.write_all(text.as_bytes())?;
        opened.sync_all()
    });
    written.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => exists(file),
        _ => out::fail(Exit::Failed, format_args!("cannot write to {}: {error}", file.display())),
    })
}
