//! The terminal: opened, drawn on, read, and always given back as it was.

use std::io;
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEvent};
use ratatui::crossterm::style::force_color_output;
use tokio::sync::mpsc;

use super::draw;
use super::view::View;
use crate::status::State;

/// How often the thread that reads keys looks whether anybody wants them.
const LOOK: Duration = Duration::from_millis(250);
/// The events that may wait; more are left to the terminal.
const QUEUE: usize = 64;

/// The terminal while it is drawn on. When dropped, and before a panic is reported, it is restored.
pub(super) struct Screen {
    terminal: DefaultTerminal,
    _restore: Restore,
}

struct Restore;

impl Drop for Restore {
    fn drop(&mut self) {
        // What a terminal that has gone looks like does not matter.
        let _ = ratatui::try_restore();
    }
}

/// The keys that are pressed.
pub(super) struct Input(mpsc::Receiver<io::Result<Event>>);

impl Screen {
    /// Takes the terminal, and starts a thread that reads keys until the [`Input`] is dropped.
    pub(super) fn open() -> io::Result<(Self, Input)> {
        // It restores the terminal also if it could be taken only in part.
        let restore = Restore;
        let terminal = ratatui::try_init()?;
        // Whether to colour is decided where the colours are chosen. Otherwise NO_COLOR would turn each reset of a colour into one
        // of all attributes.
        force_color_output(true);
        // The alternate screen begins empty. To clear it would ask the terminal where its cursor is, and not all answer.
        let (sender, receiver) = mpsc::channel(QUEUE);
        std::thread::Builder::new().name("keys".to_owned()).spawn(move || read_keys(&sender))?;
        Ok((Self { terminal, _restore: restore }, Input(receiver)))
    }

    /// Draws, and returns the height of the terminal in lines.
    pub(super) fn draw(&mut self, view: &View, state: Option<&State>) -> io::Result<u16> {
        let drawn = self.terminal.draw(|frame| draw::draw(frame, view, state))?;
        Ok(drawn.area.height)
    }
}

impl Input {
    /// The next event: a key, or nothing if it is of another kind. Cancel safe.
    pub(super) async fn next(&mut self) -> io::Result<Option<KeyEvent>> {
        match self.0.recv().await {
            Some(Ok(Event::Key(key))) if key.is_press() => Ok(Some(key)),
            Some(Ok(_)) => Ok(None),
            Some(Err(error)) => Err(error),
            None => Err(io::Error::other("its keys cannot be read")),
        }
    }
}

fn read_keys(sender: &mpsc::Sender<io::Result<Event>>) {
    while !sender.is_closed() {
        let event = match event::poll(LOOK) {
            Ok(true) => event::read(),
            Ok(false) => continue,
            Err(error) => Err(error),
        };
        let failed = event.is_err();
        if sender.blocking_send(event).is_err() || failed {
            return;
        }
    }
}
