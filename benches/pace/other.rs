//! This build of paced in comparison with another one, such as that of the commit before a change.

use std::path::Path;

use crate::figures::{Bound, Figure, Section, Unit};
use crate::guarding::take_turns;
use crate::stage::Stage;
use crate::support::daemon::binary;

pub const NAME: &str = "other";

const THIS: &str = "this build";
const RATIO: Figure =
    Figure::median("jobs per second, this / the other (median of 10 pairs)", Unit::Plain(3));

/// # Errors
/// A text; also if there is no program at `other`.
pub async fn run(stage: &Stage, other: Option<&Path>) -> Result<Section, String> {
    let other = other.ok_or("`other` needs `--other PATH`, the program of another build of paced")?;
    let mut section = Section::new(
        NAME,
        "This build and another one",
        "30 000 jobs of 256 B wait in a quorum queue; paced takes them with 64 requests in flight and a limit that \
         does not bind. The two builds take turns ten times in each run.",
    );
    let this = binary();
    for run in 1..=stage.runs {
        let builds = [(THIS, this.as_path()), ("the other", other)];
        let ratio = take_turns(stage, &mut section, run, builds).await?;
        section.judge(THIS, RATIO, ratio, Bound::AtLeast(0.97));
    }
    Ok(section)
}
