//! A line of bars of the pace.

use std::collections::VecDeque;

/// Bars of rising height, from nothing to the limit.
const BARS: [char; 9] = ['·', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The latest `width` paces as bars, the newest at the right. A full bar is the limit, or the highest pace where there is none.
pub(super) fn line(paces: &VecDeque<f64>, limit: Option<f64>, width: usize) -> String {
    let shown = paces.iter().skip(paces.len().saturating_sub(width));
    let full = limit.unwrap_or_else(|| shown.clone().copied().fold(0.0, f64::max));
    let bars: String = shown.map(|pace| bar(*pace, full)).collect();
    format!("{bars:>width$}")
}

fn bar(pace: f64, full: f64) -> char {
    if full <= 0.0 || pace <= 0.0 {
        return BARS[0];
    }
    // A pace that is not 0 does not look like 0; a little less than the limit is the limit, as rates are measured.
    let eighths = (pace / full * 8.0).round().clamp(1.0, 8.0);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is between 1 and 8")]
    let eighths = eighths as usize;
    BARS[eighths]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_bar_is_the_limit() {
        let paces = VecDeque::from([0.0, 0.1, 5.0, 9.9, 50.0]);
        assert_eq!(line(&paces, Some(10.0), 5), "·▁▄██");
        assert_eq!(line(&paces, None, 6), " ·▁▁▂█");
        assert_eq!(line(&paces, Some(10.0), 2), "██");
        assert_eq!(line(&paces, Some(0.0), 1), "·");
        assert_eq!(line(&VecDeque::from([0.0]), None, 1), "·");
        assert_eq!(line(&VecDeque::new(), None, 3), "   ");
    }
}
