//! The loop of the terminal, which handles keys, samples and signals. When the command ends, also
//! by a signal or a panic, it restores the terminal.

use super::sample::{Sample, SampleChange};
use super::screen::Screen;
use super::{TopArguments, View};
use crate::asking::Wait;
use crate::signals::signals;
use clap::ValueEnum;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// How long the loop waits for a key before it polls samples and signals.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The limits of the interval between samples.
const INTERVAL_MS_MIN: u64 = 100;
const INTERVAL_MS_MAX: u64 = 60_000;

/// The handle of a thread that requests the tables of a view from the node, on demand.
struct Sampler {
    views: Sender<View>,
    samples: Receiver<(View, Result<Sample, String>)>,
    /// Whether a sample is outstanding.
    is_asked: bool,
}

impl Sampler {
    fn start(socket: PathBuf, wait: Wait) -> std::io::Result<Self> {
        let (views, asked) = channel();
        let (sender, samples) = channel();
        Builder::new().name("sampler".into()).spawn(move || {
            while let Ok(view) = asked.recv() {
                let sample = Sample::take(&socket, wait, view).map_err(|error| error.to_string());
                if sender.send((view, sample)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { views, samples, is_asked: false })
    }

    fn ask(&mut self, view: View) {
        self.is_asked = self.views.send(view).is_ok();
    }
}

/// Shows a node until the user quits. The first sample is taken before the terminal is set up, so
/// that a wrong socket is an error, as in other commands.
#[expect(clippy::disallowed_methods, reason = "samples go by the clock")]
pub fn run(arguments: &TopArguments) -> Result<(), Box<dyn Error>> {
    let TopArguments { socket, view, interval, wait, .. } = arguments;
    let first = Sample::take(socket, *wait, *view)?;
    let (_wake, is_over) = signals()?;
    let mut sampler = Sampler::start(socket.clone(), wait.without())?;
    let has_colors = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let interval_ms = interval.as_millis() as u64;
    let interval_ms = interval_ms.clamp(INTERVAL_MS_MIN, INTERVAL_MS_MAX);
    let mut screen = Screen::new(*view, interval_ms, has_colors);
    screen.change = Some(SampleChange::between(None, first));
    // This installs a hook that restores the terminal before a panic is printed.
    let mut terminal = ratatui::try_init()?;
    let mut asked_at = Instant::now();
    let mut is_drawn = false;
    let shown = loop {
        if !is_drawn && let Err(error) = terminal.draw(|frame| screen.draw(frame)) {
            break Err(error);
        }
        if is_over.load(Ordering::Relaxed) {
            break Ok(());
        }
        match next_event() {
            Ok(Some(Event::Key(key))) if key.kind != KeyEventKind::Release => {
                if !screen.handle_key(key) {
                    break Ok(());
                }
                is_drawn = false;
            }
            // Other events, such as a resize of the terminal, redraw the screen too.
            Ok(event) => is_drawn = event.is_none(),
            Err(error) => break Err(error),
        }
        while let Ok((view, sample)) = sampler.samples.try_recv() {
            sampler.is_asked = false;
            screen.handle_sample(view, sample);
            is_drawn = false;
        }
        let is_due = asked_at.elapsed() >= Duration::from_millis(screen.interval_ms);
        if !sampler.is_asked && (screen.change.is_none() || is_due && !screen.is_paused) {
            asked_at = Instant::now();
            sampler.ask(screen.view);
        }
    };
    ratatui::try_restore()?;
    Ok(shown?)
}

/// The next event of the terminal, if there is one soon.
fn next_event() -> std::io::Result<Option<Event>> {
    event::poll(LOOK_EVERY)?.then(event::read).transpose()
}

impl Screen {
    /// Handles a key. Returns whether to go on.
    fn handle_key(&mut self, key: KeyEvent) -> bool {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if is_control => return false,
            _ if self.edits_filter => self.edit_filter(key.code),
            _ if self.shows_help => self.shows_help = false,
            KeyCode::Char('q') => return false,
            KeyCode::Char('?') => self.shows_help = true,
            KeyCode::Char(digit @ '1'..='7') => {
                self.show(View::value_variants()[digit as usize - '1' as usize]);
            }
            KeyCode::Tab => self.show(self.neighbor(1)),
            KeyCode::BackTab => self.show(self.neighbor(View::value_variants().len() - 1)),
            KeyCode::Char('s') => self.sort = Some(self.sort.map_or(0, |column| column + 1)),
            KeyCode::Char('r') => self.is_reversed = !self.is_reversed,
            KeyCode::Char('p') => self.is_paused = !self.is_paused,
            KeyCode::Char('/') => self.edits_filter = true,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('+') => self.interval_ms = (self.interval_ms * 2).min(INTERVAL_MS_MAX),
            KeyCode::Char('-') => self.interval_ms = (self.interval_ms / 2).max(INTERVAL_MS_MIN),
            KeyCode::Char('j') | KeyCode::Down => self.scrolled += 1,
            KeyCode::Char('k') | KeyCode::Up => self.scrolled = self.scrolled.saturating_sub(1),
            _ => {}
        }
        true
    }

    fn edit_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Char(letter) => self.filter.push(letter),
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Enter => self.edits_filter = false,
            KeyCode::Esc => {
                self.filter.clear();
                self.edits_filter = false;
            }
            _ => {}
        }
    }

    fn neighbor(&self, steps: usize) -> View {
        let views = View::value_variants();
        let at = views.iter().position(|view| *view == self.view).unwrap_or(0);
        views[(at + steps) % views.len()]
    }

    /// Switches to another view. The loop then requests the tables of that view.
    fn show(&mut self, view: View) {
        if view != self.view {
            (self.view, self.change, self.sort, self.scrolled) = (view, None, None, 0);
            self.is_reversed = false;
        }
    }

    fn handle_sample(&mut self, view: View, sample: Result<Sample, String>) {
        if view != self.view {
            return;
        }
        match sample {
            Ok(sample) => {
                let before = self.change.take().map(|change| change.now);
                self.change = Some(SampleChange::between(before.as_ref(), sample));
                self.failure = None;
            }
            Err(why) => self.failure = Some(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_referee::program_of;
    use std::process::Command;

    fn press(screen: &mut Screen, keys: &str) -> bool {
        let mut codes = keys.chars().map(|letter| match letter {
            '\t' => KeyCode::Tab,
            '\n' => KeyCode::Enter,
            '\x1b' => KeyCode::Esc,
            letter => KeyCode::Char(letter),
        });
        codes.all(|code| screen.handle_key(KeyEvent::new(code, KeyModifiers::NONE)))
    }

    #[test]
    fn keys_act_as_the_help_lists() {
        let mut screen = Screen::new(View::Overview, 1000, false);
        assert!(press(&mut screen, "\t\t") && screen.view == View::Workers);
        assert!(press(&mut screen, "7") && screen.view == View::Drops);
        assert!(press(&mut screen, "/arp\n") && screen.filter == "arp" && !screen.edits_filter);
        assert!(press(&mut screen, "\x1b") && screen.filter.is_empty());
        assert!(press(&mut screen, "ssr") && screen.sort == Some(1) && screen.is_reversed);
        assert!(press(&mut screen, "p++-") && screen.is_paused && screen.interval_ms == 2000);
        assert!(press(&mut screen, "?") && screen.shows_help);
        assert!(press(&mut screen, "q") && !screen.shows_help, "any key closes the help");
        assert!(press(&mut screen, "/q") && screen.filter == "q", "a letter of the filter");
        assert!(press(&mut screen, "\x1b") && !press(&mut screen, "q"));
    }

    /// The environment variable with which the next test panics. The test sets it for another run
    /// of itself, in a terminal.
    const PANICS: &str = "POLLUX_TOP_PANICS";

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a run says to another that it shall panic")]
    fn a_panic_leaves_the_terminal_as_it_was() {
        if std::env::var_os(PANICS).is_some() {
            let _terminal = ratatui::try_init().expect("a terminal");
            panic!("on purpose");
        }
        let test = "a_panic_leaves_the_terminal_as_it_was";
        let Some(script) = program_of(test, "script", "--referees") else { return };
        let own = std::env::current_exe().expect("it runs");
        let line =
            format!("{PANICS}=1 {} --exact top::terminal::tests::{test}; stty -a", own.display());
        let output = Command::new(script).args(["-qc", &line, "/dev/null"]).output();
        let text = output.expect("it starts").stdout;
        let text = String::from_utf8_lossy(&text);
        let (_, after) = text.split_once("\x1b[?1049h").expect("the other screen");
        let (_, after) = after.split_once("\x1b[?1049l").expect("and back");
        assert!(after.contains("on purpose"), "{text:?}");
        assert!(after.contains(" icanon") && after.contains(" echo "), "{text:?}");
    }
}
