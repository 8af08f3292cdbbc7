//! Secrets, which are given directly or in files of their own.

use std::io;
use std::path::Path;

use super::error::system_text;
use super::reader::{Absent, Found, IN_QUOTES, Reader, Table};
use super::settings::Secret;
use super::source::read_text;

/// The contents of a secret file, without one newline at its end.
fn read(file: &Path) -> io::Result<String> {
    const MAX_SECRET: u64 = 64 << 10;
    let mut text = read_text(file, MAX_SECRET)?;
    if text.ends_with('\n') {
        text.truncate(text.len() - 1 - usize::from(text.ends_with("\r\n")));
    }
    Ok(text)
}

impl Secret {
    /// Reads the secret from its file again; a secret without a file is returned unchanged. It blocks while it reads.
    ///
    /// # Errors
    /// The file cannot be read. The text names neither the file nor what is in it.
    pub fn read_again(&self) -> Result<Self, String> {
        let Some(file) = self.file() else { return Ok(self.clone()) };
        let text = read(file).map_err(|error| format!("its file cannot be read: {}", system_text(&error)))?;
        Ok(Self::of_file(text, file.to_owned()))
    }
}

impl<'v> Reader<'v> {
    /// The secret under `key`, or in the file that `key_file` names. `check` returns the text to
    /// use, or a problem that does not show it.
    pub fn secret(
        &mut self,
        table: &Table<'v>,
        key: &str,
        absent: Absent,
        check: impl Fn(&str) -> Result<Secret, String>,
    ) -> Option<Secret> {
        let names = [key.to_owned(), format!("{key}_file")];
        self.secret_under(table, key, &names, absent, check)
    }

    /// As [`Reader::secret`], for several spellings of one key.
    pub fn secret_under(
        &mut self,
        table: &Table<'v>,
        key: &str,
        names: &[String],
        absent: Absent,
        check: impl Fn(&str) -> Result<Secret, String>,
    ) -> Option<Secret> {
        let mut given: Vec<(&String, Found<'v>)> = Vec::new();
        for name in names {
            given.extend(self.find(table, name).map(|found| (name, found)));
        }
        // A source overrides lower ones, whichever spelling each uses.
        let top = given.iter().map(|(_, found)| self.layers[found.layer].rank).max();
        given.retain(|(_, found)| Some(self.layers[found.layer].rank) == top);
        if let [(first, _), (second, found), ..] = &given[..] {
            self.wrong(found, format!("given as `{first}` and as `{second}`; keep one"));
            return None;
        }
        let Some((name, found)) = given.pop() else {
            let secret = check(&self.absent(table, key, absent)?).ok()?;
            self.note_secret(table, key, &secret, None);
            return Some(secret);
        };
        let mut text = self.text(&found, IN_QUOTES)?;
        let file = name.ends_with("_file").then(|| self.layers[found.layer].dir.join(&text));
        if let Some(file) = &file {
            text = self.contents(&found, file)?;
        }
        let checked = check(&text).map(|secret| match file {
            // A value from a file of its own is hidden as a whole: a path may be a key.
            Some(file) => Secret::of_file(secret.expose(), file),
            None => secret,
        });
        match checked {
            Ok(secret) => {
                self.note_secret(table, key, &secret, Some(&found));
                Some(secret)
            }
            Err(problem) => {
                self.wrong(&found, problem);
                None
            }
        }
    }

    /// The contents of a secret file, without one newline at its end.
    ///
    /// Its name is not shown: it may be the secret itself, under the wrong key.
    fn contents(&mut self, found: &Found<'v>, file: &Path) -> Option<String> {
        let dir = &self.layers[found.layer].dir;
        match read(file) {
            Ok(text) => Some(text),
            Err(error) => {
                let problem = format!(
                    "the file it names cannot be read ({}); give a path, absolute or from {}",
                    system_text(&error),
                    dir.display()
                );
                self.wrong(found, problem);
                None
            }
        }
    }
}
