//! The full-screen view: draws, and handles keys.

use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};

use super::plain::summary;
use super::screen::{View, draw};
use super::watched::Watch;
use super::{LOOK, WatchError, WatchOptions};
use crate::console::print;
use firebrick::observe::terminal::is_drawable;

/// The maximum time to respond to a key.
const KEYS: Duration = Duration::from_millis(100);

/// Shows the run until it ends or the user quits, and restores the terminal. The run's outcome stays visible.
pub(crate) fn watch_on_terminal(mut watch: Watch, options: &WatchOptions) -> Result<(), WatchError> {
    let mut terminal = ratatui::try_init().map_err(WatchError::Show)?;
    let shown = show(&mut watch, options, &mut terminal);
    ratatui::restore();
    shown?;
    if let Some(end) = summary(&watch.watched) {
        print(&format!("{end}\n"));
    }
    Ok(())
}

fn show(watch: &mut Watch, options: &WatchOptions, terminal: &mut DefaultTerminal) -> Result<(), WatchError> {
    let mut view = View::default();
    while !options.stop.load(Ordering::Relaxed) {
        watch.look()?;
        let looked = Instant::now();
        // It may have been resized.
        if !is_drawable() {
            let reason = "the terminal reports more columns and rows than can be drawn";
            return Err(WatchError::Show(io::Error::other(reason)));
        }
        terminal.draw(|frame| draw(frame, &watch.watched, view)).map_err(WatchError::Show)?;
        if watch.watched.finished.is_some() {
            return Ok(());
        }
        watch.watched.require_process()?;
        while looked.elapsed() < LOOK && !options.stop.load(Ordering::Relaxed) {
            match key(KEYS).map_err(WatchError::Show)? {
                Key::Quit => return Ok(()),
                Key::Redraw => break,
                Key::Logarithmic => {
                    view.logarithmic = !view.logarithmic;
                    break;
                }
                Key::None => {}
            }
        }
    }
    Ok(())
}

/// A user's command.
enum Key {
    None,
    Quit,
    Logarithmic,
    Redraw,
}

fn key(within: Duration) -> io::Result<Key> {
    if !event::poll(within)? {
        return Ok(Key::None);
    }
    Ok(match event::read()? {
        Event::Key(key) if key.kind != KeyEventKind::Release => match key.code {
            KeyCode::Char('q') | KeyCode::Esc => Key::Quit,
            // In raw mode, the terminal delivers Ctrl-C as a key.
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Key::Quit,
            KeyCode::Char('l') => Key::Logarithmic,
            _ => Key::None,
        },
        Event::Resize(..) => Key::Redraw,
        _ => Key::None,
    })
}
