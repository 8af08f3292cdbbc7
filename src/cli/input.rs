//! The input of commands.

use std::path::Path;

use tokio::fs::File;
use tokio::io::{AsyncBufRead, BufReader, stdin};

use super::exit::Exit;
use super::out;

/// Opens a file; stdin for `-` and for none. Errors are printed to stderr.
pub(super) async fn open(file: Option<&Path>) -> Result<Box<dyn AsyncBufRead + Send + Unpin>, Exit> {
    match file {
        Some(path) if path != Path::new("-") => match File::open(path).await {
            Ok(file) => Ok(Box::new(BufReader::with_capacity(64 * 1024, file))),
            Err(error) => Err(out::fail(Exit::Usage, format_args!("{}: {error}", path.display()))),
        },
        _ => Ok(Box::new(BufReader::new(stdin()))),
    }
}
