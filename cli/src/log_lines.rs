//! Prints what the libraries say: one line on standard error for each message of Firebrick, and with `-vv` of all
//! libraries.

use std::fmt::{Debug, Write};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::console::{Detail, tell};

/// Prints the messages from here on.
pub(crate) fn print_messages() {
    // Another subscriber of this process prints them.
    let _ = tracing::subscriber::set_global_default(Lines);
}

struct Lines;

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let (most, all) = match Detail::installed() {
            Detail::Quiet => (Level::WARN, false),
            Detail::Usual => (Level::INFO, false),
            Detail::Verbose => (Level::DEBUG, false),
            Detail::Most => (Level::DEBUG, true),
        };
        metadata.is_event()
            && (all || metadata.target().starts_with("firebrick"))
            && *metadata.level() <= most
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = String::from(if *event.metadata().level() <= Level::WARN { "warning: " } else { "" });
        if !event.metadata().target().starts_with("firebrick") {
            line += &format!("{}: ", event.metadata().target());
        }
        event.record(&mut Message(&mut line));
        tell(&line);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Appends an event's message.
struct Message<'a>(&'a mut String);

impl Visit for Message<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            let _ = write!(self.0, "{value:?}");
        }
    }
}
