//! "Did you mean": the known name nearest to an unknown one.

/// The name in `known` that `name` most likely meant; `None` when it resembles none.
pub(crate) fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    // Foreign text may be long; nothing that long is near.
    if name.len() > 64 {
        return None;
    }
    let (best, distance) =
        known.iter().map(|other| (*other, distance(name, other))).min_by_key(|(_, distance)| *distance)?;
    (distance <= best.chars().count() / 2).then_some(best)
}

/// Levenshtein's distance.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
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
    }

    #[test]
    fn distances() {
        for (a, b, expected) in
            [("", "", 0), ("", "abc", 3), ("abc", "", 3), ("kitten", "sitting", 3), ("lane", "lane", 0)]
        {
            assert_eq!(distance(a, b), expected, "{a} {b}");
        }
    }
}
