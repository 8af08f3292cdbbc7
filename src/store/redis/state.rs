//! The states of limits, as the scripts write them: a letter, a version, and doubles.

use super::packed::{all, integer};

/// The version of the layout that follows the letter.
const VERSION: u8 = b'1';

/// A state as text for people and tests: its letter and its numbers, without those that are redundant and without the
/// entries of a log that were dropped or taken back.
pub(super) fn text(state: &[u8]) -> String {
    let shown = numbers(state).map(|(letter, numbers)| {
        let numbers: Vec<String> = numbers.iter().map(i64::to_string).collect();
        format!("{letter} {}", numbers.join(" "))
    });
    shown.unwrap_or_else(|| String::from_utf8_lossy(state).into_owned())
}

/// The letter of a state's kind, and its significant numbers; `None` if the bytes are no state.
pub(super) fn numbers(state: &[u8]) -> Option<(char, Vec<i64>)> {
    let (&[letter, VERSION], packed) = state.split_first_chunk::<2>()? else { return None };
    match letter {
        b't' | b'w' | b'c' if packed.len() % 8 == 0 => Some((letter.into(), all(packed))),
        b'l' => Some(('l', log(packed)?)),
        _ => None,
    }
}

/// Parses a log: last, shift, epoch and cleared, then for each entry when its units were taken and their number.
fn log(packed: &[u8]) -> Option<Vec<i64>> {
    let (head, entries) = packed.split_at_checked(9 * 8)?;
    let [last, shift, epoch, gone, count, .., cleared] = super::packed::doubles::<9>(head)?;
    let (entries, rest) = entries.as_chunks::<16>();
    let live = entries.get(usize::try_from(gone).ok()?..usize::try_from(count).ok()?)?;
    let numbers = live.iter().flat_map(|entry| entry.as_chunks::<8>().0).copied().map(integer);
    rest.is_empty().then(|| [last, shift, epoch, cleared].into_iter().chain(numbers).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_states_are_told_as_text() {
        let mut state = b"t1".to_vec();
        let last = 1_760_000_000_000_000_f64;
        for number in [last, 0.0, 1_760_000_000_000_001.0, 9_007_199_254_740_991.0, 7.0, 9.0, 1e6, 5.0] {
            state.extend(number.to_le_bytes());
        }
        assert_eq!(text(&state), "t 1760000000000000 0 1760000000000001 9007199254740991 7 9 1000000 5");
        // Neither a state of a later version nor any other text is parsed.
        assert_eq!((numbers(b"t2"), text(b"text")), (None, "text".to_owned()));
    }
}
