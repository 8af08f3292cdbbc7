//! The input and the outcomes of a pipe.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use paced::pipe::{self, Format, OpenError, Outcomes, Records, Resumed};
use tokio::io::{AsyncBufRead, AsyncWrite};

use super::Args;
use crate::cli::exit::Exit;
use crate::cli::template::say_taken;
use crate::cli::{input, out};

pub(super) type Input = Box<dyn AsyncBufRead + Send + Unpin>;
pub(super) type Output = Box<dyn AsyncWrite + Send + Unpin>;

/// What a pipe reads and writes.
pub(super) struct Files {
    pub(super) records: Records<Input>,
    /// What earlier runs wrote.
    pub(super) outcomes: Outcomes,
    pub(super) output: Output,
    pub(super) total: Total,
}

/// The number of entries of the input, once it is known.
#[derive(Clone, Debug, Default)]
pub(super) struct Total {
    count: Arc<OnceLock<u64>>,
    /// Whether somebody counts them.
    is_expected: bool,
}

impl Total {
    pub(super) const fn is_expected(&self) -> bool {
        self.is_expected
    }

    pub(super) fn get(&self) -> Option<u64> {
        self.count.get().copied()
    }

    fn set(&self, total: u64) {
        // Only one task counts for this total.
        let _ = self.count.set(total);
    }
}

/// Opens the input and the outcomes. Nothing is sent yet; errors are printed to stderr.
pub(super) async fn open(args: &Args, quiet: bool) -> Result<Files, Exit> {
    let format = args.format();
    let records = open_input(&args.file, &format).await?;
    if !quiet {
        say_taken(args.file.display(), &records);
    }
    let regular = match &*args.file {
        path if path == Path::new("-") => false,
        path => tokio::fs::metadata(path).await.is_ok_and(|metadata| metadata.is_file()),
    };
    let total = Total { is_expected: regular, ..Total::default() };
    let Some(path) = &args.resume else {
        if regular {
            count(args.file.clone(), format, total.clone());
        }
        let output = Box::new(tokio::io::stdout());
        return Ok(Files { records, outcomes: Outcomes::default(), output, total });
    };
    let Resumed { outcomes, file, was_torn } = resume(path.clone()).await?;
    if was_torn && !quiet {
        out::say(format_args!(
            "paced: {}: its last line was half written and is removed; that job is sent again",
            path.display()
        ));
    }
    if regular {
        let records = open_input(&args.file, &format).await?;
        let surveyed = pipe::survey(records, &outcomes).await.map_err(|error| usage(&args.file, &error))?;
        total.set(surveyed.map_err(|mismatch| usage(path, &mismatch))?);
    }
    Ok(Files { records, outcomes, output: Box::new(tokio::fs::File::from_std(file)), total })
}

async fn open_input(path: &Path, format: &Format) -> Result<Records<Input>, Exit> {
    let reader = input::open(Some(path)).await?;
    let whole = pipe::recognise(reader, format).await.map_err(|error| usage(path, &error))?;
    let reader: Input = Box::new(whole.map_err(|wrong| usage(path, &wrong))?);
    Records::open(reader, format).await.map_err(|error| match error {
        OpenError::Columns(error) => usage(path, &error),
        OpenError::Unreadable(error) => usage(path, &error),
    })
}

async fn resume(path: PathBuf) -> Result<Resumed, Exit> {
    let name = path.clone();
    let resumed = tokio::task::spawn_blocking(move || pipe::resume(&path)).await;
    resumed.map_err(|_| Exit::Failed)?.map_err(|error| usage(&name, &error))
}

fn usage(path: &Path, error: &dyn std::error::Error) -> Exit {
    out::fail(Exit::Usage, format_args!("{}: {error}", path.display()))
}

/// Counts the entries of a file in the background. Errors are reported where the file is read.
fn count(path: PathBuf, format: Format, total: Total) {
    drop(tokio::spawn(async move {
        let Ok(file) = tokio::fs::File::open(&path).await else { return };
        let reader = tokio::io::BufReader::with_capacity(64 * 1024, file);
        let Ok(records) = Records::open(reader, &format).await else { return };
        if let Ok(counted) = records.count().await {
            total.set(counted);
        }
    }));
}
