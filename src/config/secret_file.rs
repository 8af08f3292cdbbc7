//! Reads secrets, which are given directly or in files of their own.

use std::path::{Path, PathBuf};

use super::error::system_text;
use super::key::Key;
use super::reader::{Found, IN_QUOTES, Reader, Table};
use super::secret::{Check, Secret, contents};
use super::warnings;

impl<'v> Reader<'v> {
    /// The secret under `key`, or in the file that `key_file` names. `check` returns the text to
    /// use, or a problem that does not show it.
    pub fn secret(&mut self, table: &Table<'v>, key: &Key, check: Check) -> Option<Secret> {
        let names = [key.name.to_owned(), format!("{}_file", key.name)];
        self.secret_under(table, &names, key, check)
    }

    /// As [`Reader::secret`], for several spellings of the key.
    pub fn secret_under(
        &mut self,
        table: &Table<'v>,
        spellings: &[String],
        key: &Key,
        check: Check,
    ) -> Option<Secret> {
        self.declare(table, key, || key.string());
        let mut given: Vec<(&String, Found<'v>)> = Vec::new();
        for spelling in spellings {
            given.extend(self.find(table, spelling).map(|found| (spelling, found)));
        }
        // A source overrides lower ones, also if they spell the key differently.
        let top = given.iter().map(|(_, found)| self.layers[found.layer].rank).max();
        given.retain(|(_, found)| Some(self.layers[found.layer].rank) == top);
        if let [(first, _), (second, found), ..] = &given[..] {
            self.wrong(found, format!("given as `{first}` and as `{second}`; keep one"));
            return None;
        }
        let Some((spelling, found)) = given.pop() else {
            let secret = check(self.absent(table, key)?).ok()?;
            self.note_secret(table, key, &secret, None);
            return Some(secret);
        };
        let text = self.text(&found, IN_QUOTES)?;
        let checked = if spelling.ends_with("_file") {
            let file = self.file(&found, &text)?;
            let checked = check(&self.contents(&found, &file)?);
            // A value from a file of its own is hidden as a whole: a path may be a key.
            checked.map(|secret| Secret::of_file(secret.expose(), file).checked_by(check))
        } else {
            check(&text)
        };
        let secret = self.accept(&found, checked)?;
        self.note_secret(table, key, &secret, Some(&found));
        Some(secret)
    }

    /// The contents of a secret file, without one newline at its end.
    ///
    /// Its name is not shown: it may be the secret itself, under the wrong key.
    fn contents(&mut self, found: &Found<'v>, file: &Path) -> Option<String> {
        let read = contents(file).map_err(|error| {
            let (why, dir) = (system_text(&error), self.layers[found.layer].dir.display());
            format!("the file it names cannot be read ({why}); give a path, absolute or from {dir}")
        });
        let text = self.accept(found, read)?;
        warnings::readable(self, found, file);
        Some(text)
    }

    /// The file that `text` names, at `found`: it starts at the directory of its source, or at that of the credentials
    /// which systemd made for the service.
    pub fn file(&mut self, found: &Found<'v>, text: &str) -> Option<PathBuf> {
        let Some(rest) = in_credentials(text) else {
            return Some(self.layers[found.layer].dir.join(text));
        };
        let dir = self.credentials.as_deref().filter(|dir| dir.is_absolute());
        let file = dir.map(|dir| dir.join(rest)).ok_or(
            "begins with $CREDENTIALS_DIRECTORY, which systemd has not set here; give the service a \
             LoadCredential= (and run tools with that variable), or name the file by its path",
        );
        self.accept(found, file)
    }
}

/// The rest of a path that begins with the directory of credentials.
fn in_credentials(path: &str) -> Option<&str> {
    ["$CREDENTIALS_DIRECTORY/", "${CREDENTIALS_DIRECTORY}/"].iter().find_map(|start| path.strip_prefix(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_may_begin_at_the_credentials() {
        for (path, rest) in [
            ("$CREDENTIALS_DIRECTORY/paced_token", Some("paced_token")),
            ("${CREDENTIALS_DIRECTORY}/a/b", Some("a/b")),
            ("$CREDENTIALS_DIRECTORY", None),
            ("$CREDENTIALS_DIRECTORYx/a", None),
            ("/run/$CREDENTIALS_DIRECTORY/a", None),
            ("secrets/token", None),
        ] {
            assert_eq!(in_credentials(path), rest, "{path}");
        }
    }
}
