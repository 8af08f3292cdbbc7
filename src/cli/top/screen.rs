//! The terminal: opened, drawn on, read, and always given back as it was.

use std::io::{self, stdout};
use std::panic::{set_hook, take_hook};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use paced::api::state::State;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyEvent};
use ratatui::crossterm::execute;
use ratatui::crossterm::style::force_color_output;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::{DefaultTerminal, Terminal};
use tokio::sync::mpsc;

use super::draw;
use super::view::View;

/// How often the thread that reads keys checks whether the screen still needs them.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// The events that may wait; more are left to the terminal.
const QUEUE: usize = 64;

/// The terminal while it is drawn on. When dropped, and before a panic is reported, it is restored.
pub(super) struct Screen {
    // The fields are dropped in this order.
    _restore: Restore,
    terminal: DefaultTerminal,
}

/// Whether the terminal is taken. It is given back once: to leave the alternate screen again would move the cursor over
/// what was printed since the first time, such as the report of a panic.
#[derive(Clone, Debug, Default)]
struct Taken(Arc<AtomicBool>);

impl Taken {
    fn take(&self) -> io::Result<()> {
        // A terminal that could be taken only in part is given back too.
        self.0.store(true, Ordering::SeqCst);
        enable_raw_mode()?;
        execute!(stdout(), EnterAlternateScreen)
    }

    fn give_back(&self) {
        if !self.0.swap(false, Ordering::SeqCst) {
            return;
        }
        // A terminal that is gone need not be restored, and neither call depends on the other.
        let _ = disable_raw_mode();
        let _ = execute!(stdout(), LeaveAlternateScreen, Show);
    }

    /// Has the terminal given back before a panic is reported: on the alternate screen the report would be lost.
    fn give_back_on_panic(&self) {
        let (taken, report) = (self.clone(), take_hook());
        set_hook(Box::new(move |panic| {
            taken.give_back();
            report(panic);
        }));
    }
}

/// Gives the terminal back when it is dropped.
struct Restore(Taken);

impl Drop for Restore {
    fn drop(&mut self) {
        self.0.give_back();
    }
}

/// The keys that are pressed.
pub(super) struct Input(mpsc::Receiver<io::Result<Event>>);

impl Screen {
    /// Takes the terminal, and starts a thread that reads keys until the [`Input`] is dropped.
    pub(super) fn open() -> io::Result<(Self, Input)> {
        let taken = Taken::default();
        let restore = Restore(taken.clone());
        taken.give_back_on_panic();
        taken.take()?;
        let terminal = Terminal::new(CrosstermBackend::new(stdout()))?;
        // Whether to colour is decided where the colours are chosen. Otherwise NO_COLOR would turn each reset of a colour into one
        // of all attributes.
        force_color_output(true);
        // The alternate screen begins empty. To clear it would ask the terminal where its cursor is, and not all answer.
        let (sender, receiver) = mpsc::channel(QUEUE);
        std::thread::Builder::new().name("keys".to_owned()).spawn(move || read_keys(&sender))?;
        Ok((Self { _restore: restore, terminal }, Input(receiver)))
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
        let event = match event::poll(CHECK_INTERVAL) {
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

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::process::{Command, Stdio};

    use super::*;

    /// In a process with this variable in its environment the test below takes the terminal, and panics.
    const TAKES: &str = "PACED_TEST_TAKES_TERMINAL";
    const NAME: &str = "cli::top::screen::tests::a_panic_is_reported_on_the_terminal_as_it_was";

    #[test]
    fn a_panic_is_reported_on_the_terminal_as_it_was() {
        if std::env::var_os(TAKES).is_some() {
            let (_screen, _input) = Screen::open().unwrap();
            panic!("on purpose");
        }
        let program = std::env::current_exe().unwrap();
        let line = format!(
            "{TAKES}=1 timeout --foreground 60 {} --exact --nocapture {NAME}; stty -a",
            program.display()
        );
        // It is part of Debian's base system.
        let mut script = Command::new("script");
        script.args(["-q", "-c", &line, "/dev/null"]).env("SHELL", "/bin/sh").env("TERM", "xterm");
        let mut child =
            script.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut written = Vec::new();
        child.stdout.take().unwrap().read_to_end(&mut written).unwrap();
        assert!(child.wait().unwrap().success());
        let written = String::from_utf8_lossy(&written);
        let parts: Vec<&str> = written.split("\x1b[?1049l").collect();
        let [before, after] = parts[..] else { panic!("the screen is left once: {written:?}") };
        assert!(before.contains("\x1b[?1049h") && !before.contains("on purpose"), "{written:?}");
        assert!(after.contains("on purpose") && after.contains("1 failed"), "{written:?}");
        // The terminal is not in raw mode.
        assert!(after.contains(" icanon") && !after.contains("-icanon"), "{written:?}");
    }
}
