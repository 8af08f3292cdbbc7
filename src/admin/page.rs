//! The live page at `/`: a few files, which the binary carries. The page reads all that it shows from the API.

use axum::http::Method;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::response::{IntoResponse, Response};

use super::routes::{Route, Rule};

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Nothing but the files of the page and the API of the same daemon is loaded, and no other page may frame it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The files: path, content type, content.
const FILES: [(&str, &str, &str); 15] = [
    ("/api.js", SCRIPT, include_str!("page/api.js")),
    ("/card.js", SCRIPT, include_str!("page/card.js")),
    ("/changes.js", SCRIPT, include_str!("page/changes.js")),
    ("/chart.js", SCRIPT, include_str!("page/chart.js")),
    ("/dead.js", SCRIPT, include_str!("page/dead.js")),
    ("/details.js", SCRIPT, include_str!("page/details.js")),
    ("/dialogs.js", SCRIPT, include_str!("page/dialogs.js")),
    ("/dom.js", SCRIPT, include_str!("page/dom.js")),
    ("/find.js", SCRIPT, include_str!("page/find.js")),
    ("/history.js", SCRIPT, include_str!("page/history.js")),
    ("/", HTML, include_str!("page/index.html")),
    ("/live.js", SCRIPT, include_str!("page/live.js")),
    ("/page.css", STYLE, include_str!("page/page.css")),
    ("/page.js", SCRIPT, include_str!("page/page.js")),
    ("/words.js", SCRIPT, include_str!("page/words.js")),
];

/// The files of the page. They contain nothing about this daemon, so they need no token. But a request must use a
/// name of this daemon, so that no foreign site can serve them under its own name.
pub(crate) fn page() -> Vec<Route> {
    let route = |&(path, kind, content)| {
        Route::new(Method::GET, path, Rule::Page, (move || async move { file(kind, content) }, &()))
    };
    FILES.iter().map(route).collect()
}

fn file(kind: &'static str, content: &'static str) -> Response {
    let headers = [
        (CONTENT_TYPE, kind),
        // Another version of the daemon has other files, and all files of a page must be of one version.
        (CACHE_CONTROL, "no-cache"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (REFERRER_POLICY, "no-referrer"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, content).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_small_and_has_every_file_that_it_names() {
        let bytes: usize = FILES.iter().map(|(_, _, content)| content.len()).sum();
        assert!(bytes <= 112 * 1024, "{bytes}");
        let is_there = |name: &str| FILES.iter().any(|(path, _, _)| path.trim_start_matches('/') == name);
        for (path, _, content) in FILES {
            let quoted = content.split(['"', '\'']).filter_map(|text| text.strip_prefix("./"));
            let scripts = quoted.filter(|text| text.ends_with(".js"));
            scripts.for_each(|script| assert!(is_there(script), "{path} names {script}"));
        }
        for linked in ["page.css", "page.js"] {
            assert!(
                is_there(linked)
                    && FILES.iter().any(|(_, kind, content)| *kind == HTML && content.contains(linked))
            );
        }
    }
}
