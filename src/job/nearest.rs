//! "Did you mean": the known name nearest to an unknown one.

/// The name in `known` that `name` most likely meant; `None` when it resembles none.
pub(crate) fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    // Foreign text may be long, and no long text is near to a name.
    if name.len() > 64 {
        return None;
    }
    let (best, distance) =
        known.iter().map(|other| (*other, distance(name, other))).min_by_key(|(_, distance)| *distance)?;
    (distance <= (name.chars().count() / 3).max(1)).then_some(best)
}

/// The number of letters to insert, drop, replace or swap with their neighbour that turn one word into the other.
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in other.iter().enumerate() {
            let mut least = (last[j] + usize::from(a != b)).min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *a == other[j - 1] && one[i - 1] == *b {
                least = least.min(before[j - 1] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggests_what_is_near_and_nothing_else() {
        let known = ["lane", "method", "not-before", "deadline"];
        assert_eq!(nearest("lame", &known), Some("lane"));
        assert_eq!(nearest("notbefore", &known), Some("not-before"));
        assert_eq!(nearest("Methode", &known), Some("method"));
        assert_eq!(nearest("zzzzzzzz", &known), None);
        assert_eq!(nearest(&"lane".repeat(100), &known), None);
        assert_eq!(nearest("lane", &[]), None);
        for other in ["plan", "line-up", "land-on", "date", ""] {
            assert_eq!(nearest(other, &known), None, "{other}");
        }
    }

    #[test]
    fn distances() {
        for (one, other, expected) in [
            ("", "", 0),
            ("", "rate", 4),
            ("kitten", "sitting", 3),
            ("rate", "rate", 0),
            ("rtae", "rate", 1),
            ("burts", "burst", 1),
            ("max_atempt", "max_attempts", 2),
        ] {
            assert_eq!(distance(one, other), expected, "{one} {other}");
            assert_eq!(distance(other, one), expected, "{other} {one}");
        }
    }
}
