//! The states of limits, as the scripts write them.

/// The letter of the GCRA family's states, which are packed.
const PACKED: u8 = b't';

/// Packed doubles, which hold integers below 2^53; none if there are not just as many.
pub(super) fn doubles<const N: usize>(packed: &[u8]) -> Option<[i64; N]> {
    let (doubles, rest) = packed.as_chunks::<8>();
    let doubles: [[u8; 8]; N] = doubles.try_into().ok().filter(|_| rest.is_empty())?;
    Some(doubles.map(integer))
}

pub(super) fn integer(double: [u8; 8]) -> i64 {
    f64::from_le_bytes(double) as i64
}

/// Of a state of the GCRA family: last, shift, epoch, tat, rem, N, P, burst.
fn numbers(state: &[u8]) -> Option<[i64; 8]> {
    state.strip_prefix(&[PACKED]).and_then(doubles)
}

/// A state for people and tests: its letter, then its numbers.
pub(super) fn text(state: &[u8]) -> String {
    if let Some([last, shift, epoch, at, rem, count, period, burst]) = numbers(state) {
        return format!("t {last} {shift} {epoch} {at} {rem} {count} {period} {burst}");
    }
    log(state).unwrap_or_else(|| String::from_utf8_lossy(state).into_owned())
}

/// Of a log: last, shift, epoch and cleared, then when units were taken and how many; the entries that are gone or
/// were taken back left out.
fn log(state: &[u8]) -> Option<String> {
    let (head, entries) = state.strip_prefix(b"l")?.split_at_checked(9 * 8)?;
    let [last, shift, epoch, gone, count, .., cleared] = doubles::<9>(head)?;
    let (entries, rest) = entries.as_chunks::<16>();
    let mut text = format!("l {last} {shift} {epoch} {cleared}");
    for entry in entries.get(usize::try_from(gone).ok()?..usize::try_from(count).ok()?)? {
        let [at, units] = doubles(entry)?;
        text += &format!(" {at} {units}");
    }
    rest.is_empty().then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_states_are_told_as_text() {
        let mut state = b"t".to_vec();
        let last = 1_760_000_000_000_000_f64;
        for number in [last, 0.0, 1_760_000_000_000_001.0, 9_007_199_254_740_991.0, 7.0, 9.0, 1e6, 5.0] {
            state.extend(number.to_le_bytes());
        }
        assert_eq!(text(&state), "t 1760000000000000 0 1760000000000001 9007199254740991 7 9 1000000 5");
        assert_eq!(text(b"w 1 2 3 4 5"), "w 1 2 3 4 5");
        // A number is missing, or is one too many.
        assert_eq!((numbers(&state[..57]), doubles::<7>(&state[1..])), (None, None));
    }
}
