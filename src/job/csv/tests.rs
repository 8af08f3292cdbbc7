use super::*;
use crate::job::ndjson;

fn columns(names: &str) -> Result<Columns, ColumnError> {
    Columns::parse(names.split(',').map(str::as_bytes), &Template::default())
}

fn message(names: &str, cells: &[&[u8]]) -> Result<Message, LineError> {
    columns(names).expect("columns").message(cells.iter().copied())
}

#[test]
fn a_row_is_the_message_of_the_same_line_of_json() {
    let names =
        "id, path,method,lane,plan,cost,priority,not_before,deadline,header:X-Any,header:content-type,body";
    let row: [&[u8]; 12] = [
        b"a",
        b"x/1",
        b"PUT",
        b"acme",
        b"free",
        b"3",
        b"7",
        b"1760000000000",
        b"2030-01-01T00:00:00Z",
        b"1",
        b"text/plain",
        b"hello",
    ];
    let json = br#"{"id": "a", "path": "x/1", "method": "PUT", "lane": "acme", "plan": "free", "cost": 3,
        "priority": 7, "not_before": 1760000000000, "deadline": "2030-01-01T00:00:00Z",
        "headers": {"X-Any": "1", "content-type": "text/plain"}, "body": "hello"}"#;
    let sorted = |mut message: Message| {
        message.headers.sort_by(|one, other| one.0.cmp(&other.0));
        message
    };
    let line = ndjson::parse(json).expect("a job");
    assert_eq!(message(names, &row).map(sorted), Ok(sorted(line.message)));
}

#[test]
fn empty_cells_are_absent_and_a_body_may_be_any_bytes() {
    assert_eq!(message("id,cost,priority,body", &[b"", b"", b"", b""]), Ok(Message::default()));
    let message = message("body", &[b"\xff\"\n"]).expect("a job");
    assert_eq!(&message.content.body[..], b"\xff\"\n");
}

#[test]
fn costs_of_single_limits_are_columns() {
    let message = message("cost:tokens,cost", &[b"1500", b" 2 "]).expect("a job");
    let header = |name: &str, cost| (name.to_owned(), Value::Integer(cost));
    assert_eq!(message.headers, [header("paced-cost-tokens", 1500), header("paced-cost", 2)]);
}

#[test]
fn wrong_names_are_reported_with_the_nearest_one() {
    for (names, problem) in [
        ("id,bdy", "column 2: unknown name `bdy`; did you mean `body`?"),
        ("ID", "column 1: unknown name `ID`; did you mean `id`?"),
        ("notbefore", "column 1: unknown name `notbefore`; did you mean `not_before`?"),
        ("id,header:", "column 2: unknown name `header:`; name the header, such as header:x-request-id"),
        (
            "customer",
            "column 1: unknown name `customer`; known are id, body, lane, plan, method, path, cost, priority, \
             not_before, deadline, cost:LIMIT and header:NAME; other names are allowed with --path, --body-from-row, --id or \
             --header",
        ),
        ("id,id", "column 2: `id` is given twice; keep one"),
        ("header:a,header:A", "column 2: `header:a` is given twice; keep one"),
    ] {
        assert_eq!(columns(names).map_err(|error| error.to_string()), Err(problem.to_owned()), "{names}");
    }
    assert_eq!(Columns::parse([], &Template::default()), Err(ColumnError::None));
}

fn template() -> Template {
    Template {
        path: Some("customers/{customer id}".parse().expect("a pattern")),
        body_from_row: true,
        id: Some("No".to_owned()),
        headers: vec![("x-tenant".to_owned(), "t-{tenant}".parse().expect("a pattern"))],
    }
}

fn templated(names: &str, template: &Template) -> Result<Columns, ColumnError> {
    Columns::parse(names.split(',').map(str::as_bytes), template)
}

#[test]
fn a_template_makes_jobs_of_any_columns() {
    let columns = templated("No,customer id,tenant,priority,path,", &template()).expect("columns");
    let row = |cells: &[&str]| columns.message(cells.iter().map(|cell| cell.as_bytes()));
    let message = row(&["7", "a b", "acme", "3", "old", ""]).expect("a job");
    assert_eq!((message.message_id.as_deref(), message.priority), (Some("7"), Some(3)));
    let body = r#"{"No":"7","customer id":"a b","path":"old","priority":"3","tenant":"acme"}"#;
    let sorted: serde_json::Value = serde_json::from_slice(&message.content.body).expect("JSON");
    assert_eq!(sorted, serde_json::from_str::<serde_json::Value>(body).expect("JSON"));
    // It is named with the other headers, which may name it otherwise.
    assert_eq!(message.content.content_type, None);
    let header = |name: &str, value: &str| (name.to_owned(), Value::Text(value.to_owned().into()));
    let headers = [header("paced-path", "customers/a%20b"), header("http-x-tenant", "t-acme")];
    assert_eq!(message.headers, headers);
    assert_eq!(row(&["7", "a", "", "", "", ""]).expect("a job").headers.len(), 1, "no tenant");
    for (cells, problem) in [
        (["", "a", "", "", "", ""], "`No` is empty, and the template needs it"),
        (["7", " ", "", "", "", ""], "`customer id` is empty, and the template needs it"),
        (
            ["7", "a", "", "high", "", ""],
            "`priority` must be a whole number from 0 to 255; if it is no priority of a job, rename the column",
        ),
    ] {
        assert_eq!(row(&cells).map_err(|error| error.to_string()), Err(problem.to_owned()));
    }
}

/// A price list has a `cost`, and it is not that of a job.
#[test]
fn columns_that_act_by_their_names_are_named_where_any_names_are_allowed() {
    let taken = |names: &str, template: &Template| {
        let columns = templated(names, template).expect("columns");
        columns.taken().map(str::to_owned).collect::<Vec<_>>()
    };
    let from_row = Template { body_from_row: true, ..Template::default() };
    let all = "id,body,lane,plan,method,path,cost,priority,not_before,deadline,cost:tokens,header:x-a";
    let plain = ["id", "lane", "plan", "method", "path", "cost", "priority", "not_before", "deadline"];
    assert_eq!(taken(&format!("{all},price,"), &from_row), plain, "the body is the row");
    let names = format!("No,customer id,tenant,{all}");
    let rest = ["lane", "plan", "method", "cost", "priority", "not_before", "deadline"];
    assert_eq!(taken(&names, &template()), rest, "the template says the id, the path and the body");
    assert_eq!(taken(all, &Template::default()), Vec::<String>::new());
    assert_eq!(taken("No,price", &from_row), Vec::<String>::new());
}

#[test]
fn a_template_names_columns_that_there_are() {
    let missing = templated("No,tenant", &template()).expect_err("no customer id").to_string();
    assert_eq!(
        missing,
        "no column `customer id`, which a template names; there are No, tenant; `{{` is a brace"
    );
    let twice = templated("No,customer id,tenant,tenant", &template()).expect_err("twice").to_string();
    assert_eq!(twice, "column 4: `tenant` is given twice; keep one");
    let latin: [&[u8]; 2] = [b"No", b"Stra\xdfe"];
    let from_row = Template { body_from_row: true, ..Template::default() };
    assert_eq!(Columns::parse(latin, &from_row), Err(ColumnError::Encoding(2)));
    let cells: [&[u8]; 3] = [b"1", b"\xff", b"t"];
    let columns = templated("No,customer id,tenant", &template()).expect("columns");
    let wrong = columns.message(cells.into_iter()).map_err(|error| error.to_string());
    assert_eq!(wrong, Err("`customer id` must be text in UTF-8".to_owned()));
}

#[test]
fn wrong_cells_are_reported() {
    for (names, cells, problem) in [
        ("cost", &[&b"1.5"[..]][..], "`cost` must be a whole number"),
        ("priority", &[b"high"], "`priority` must be a whole number from 0 to 255"),
        ("path", &[b"\xff"], "`path` must be text in UTF-8"),
        ("id,path", &[b"a"], "1 cell where there are 2 columns; write as many, and quote cells with commas"),
        ("id", &[b"a", b"b"], "2 cells where there is 1 column; write as many, and quote cells with commas"),
    ] {
        let error = message(names, cells).map_err(|error| error.to_string());
        assert_eq!(error, Err(problem.to_owned()), "{names}");
    }
}

#[test]
fn columns_that_are_separated_by_something_else() {
    let template = Template { body_from_row: true, ..Template::default() };
    for (names, separator) in [
        ("id;path;body", "semicolons"),
        ("Nr.;Betrag (EUR)", "semicolons"),
        ("a b\tc", "tabs"),
        ("a|b", "vertical bars"),
    ] {
        for template in [&template, &Template::default()] {
            let error = Columns::parse([names.as_bytes()], template);
            assert_eq!(error, Err(ColumnError::Separator(separator)), "{names}");
        }
    }
    assert!(Columns::parse([&b"a;b"[..], b"c"], &template).is_ok(), "commas");
}
