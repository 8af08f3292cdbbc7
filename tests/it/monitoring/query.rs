//! Reads which series and labels a PromQL query is about. It is no evaluator: promtool checks the grammar.

use std::collections::BTreeSet;

/// What may be aggregated with.
const AGGREGATIONS: [&str; 5] = ["sum", "min", "max", "avg", "count"];

/// The functions that queries may use here; one that is misspelt is taken for none of them.
const FUNCTIONS: [&str; 7] =
    ["rate", "increase", "histogram_quantile", "min_over_time", "max_over_time", "absent", "time"];

/// What is followed by a list of labels.
const GROUPINGS: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];

/// Words that name nothing.
const WORDS: [&str; 5] = ["and", "or", "unless", "offset", "bool"];

/// A query.
#[derive(Debug, Default, PartialEq)]
pub struct Query {
    pub selectors: Vec<Selector>,
    /// The labels that series are grouped or matched by.
    pub grouped_by: BTreeSet<String>,
}

/// The series of a name, as far as the labels match.
#[derive(Debug, PartialEq)]
pub struct Selector {
    pub name: String,
    pub matchers: Vec<Matcher>,
}

/// A condition on a label.
#[derive(Debug, PartialEq)]
pub struct Matcher {
    pub label: String,
    pub operator: String,
    pub value: String,
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Word(String),
    Text(String),
    Sign(String),
}

impl Query {
    /// Reads the query; the error says what cannot be read.
    pub fn read(text: &str) -> Result<Self, String> {
        let tokens = tokens(text)?;
        let mut rest = tokens.as_slice();
        let mut query = Self::default();
        while let Some((token, after)) = rest.split_first() {
            rest = after;
            let Token::Word(word) = token else { continue };
            let is_called = rest.first() == Some(&sign("("));
            if GROUPINGS.contains(&&**word) {
                query.grouped_by.extend(labels(&mut rest)?);
            } else if AGGREGATIONS.contains(&&**word) || WORDS.contains(&&**word) {
                // Their arguments are read as all else.
            } else if is_called {
                if !FUNCTIONS.contains(&&**word) {
                    return Err(format!("no known function: {word}"));
                }
            } else {
                query.selectors.push(Selector { name: word.clone(), matchers: matchers(&mut rest)? });
            }
        }
        Ok(query)
    }

    /// Reads a query of Grafana's for the values of a label: `label_values(SELECTOR, LABEL)`.
    pub fn read_label_values(text: &str) -> Result<Self, String> {
        let inner = text.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
        let parts = inner.and_then(|inner| inner.rsplit_once(','));
        let (selector, label) = parts.ok_or_else(|| format!("not label_values(SELECTOR, LABEL): {text}"))?;
        let mut query = Self::read(selector)?;
        query.grouped_by.insert(label.trim().to_owned());
        Ok(query)
    }
}

fn sign(text: &str) -> Token {
    Token::Sign(text.to_owned())
}

/// Takes `(LABEL, ...)`.
fn labels(rest: &mut &[Token]) -> Result<Vec<String>, String> {
    let mut all = Vec::new();
    let mut tokens = rest.iter();
    if tokens.next() != Some(&sign("(")) {
        return Err("labels in parentheses are missing".to_owned());
    }
    loop {
        match tokens.next() {
            Some(Token::Word(label)) => all.push(label.clone()),
            Some(Token::Sign(text)) if text == "," => {}
            Some(Token::Sign(text)) if text == ")" => break,
            other => return Err(format!("no label: {other:?}")),
        }
    }
    *rest = tokens.as_slice();
    Ok(all)
}

/// Takes `{LABEL="VALUE", ...}`, if it is there.
fn matchers(rest: &mut &[Token]) -> Result<Vec<Matcher>, String> {
    let mut all = Vec::new();
    let Some(mut tokens) = rest.strip_prefix(&[sign("{")]) else { return Ok(all) };
    loop {
        match tokens {
            [Token::Word(label), Token::Sign(operator), Token::Text(value), after @ ..] => {
                all.push(Matcher { label: label.clone(), operator: operator.clone(), value: value.clone() });
                tokens = after;
            }
            [Token::Sign(text), after @ ..] if text == "," => tokens = after,
            [Token::Sign(text), after @ ..] if text == "}" => {
                *rest = after;
                return Ok(all);
            }
            other => return Err(format!("no matcher: {:?}", other.first())),
        }
    }
}

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = |goes_on: fn(char) -> bool| rest.find(|c: char| !goes_on(c)).unwrap_or(rest.len());
        let taken = match first {
            'a'..='z' | 'A'..='Z' | '_' => {
                let length = length(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | ':'));
                tokens.push(Token::Word(rest[..length].to_owned()));
                length
            }
            // A number or a duration.
            '0'..='9' => length(|c| c.is_ascii_alphanumeric() || c == '.'),
            '"' => {
                let inner = rest[1..].find('"').ok_or_else(|| format!("the text does not end: {rest}"))?;
                tokens.push(Token::Text(rest[1..=inner].to_owned()));
                inner + 2
            }
            '[' => rest.find(']').ok_or_else(|| format!("the range does not end: {rest}"))? + 1,
            '=' | '!' | '<' | '>' => {
                let length = length(|c| matches!(c, '=' | '!' | '<' | '>' | '~'));
                tokens.push(sign(&rest[..length]));
                length
            }
            '(' | ')' | '{' | '}' | ',' | '+' | '-' | '*' | '/' => {
                tokens.push(sign(&rest[..1]));
                1
            }
            other => return Err(format!("a character that is not expected: {other}")),
        };
        rest = rest[taken..].trim_start();
    }
    Ok(tokens)
}

#[test]
fn series_and_labels_of_a_query_are_found() {
    let text = "histogram_quantile(0.99, sum by (job, le) (rate(a_bucket{x=\"1\",y!~\"p|q\"}[5m]))) > 0.1 \
                and on (job) c:d:sum offset 45m - time() == 1";
    let query = Query::read(text).unwrap();
    let matcher = |label: &str, operator: &str, value: &str| Matcher {
        label: label.to_owned(),
        operator: operator.to_owned(),
        value: value.to_owned(),
    };
    let bucket = Selector {
        name: "a_bucket".to_owned(),
        matchers: vec![matcher("x", "=", "1"), matcher("y", "!~", "p|q")],
    };
    let other = Selector { name: "c:d:sum".to_owned(), matchers: vec![] };
    assert_eq!(query.selectors, [bucket, other]);
    assert_eq!(query.grouped_by, BTreeSet::from(["job", "le"].map(str::to_owned)));

    let query = Query::read_label_values("label_values(a{x=\"1\"}, y)").unwrap();
    assert_eq!((query.selectors.len(), query.grouped_by), (1, BTreeSet::from(["y".to_owned()])));
    for wrong in ["rat(a[5m])", "a{x=}", "a{x=\"1}", "a[5m", "sum by job (a)", "a ? b"] {
        Query::read(wrong).unwrap_err();
    }
}
