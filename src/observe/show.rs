//! Where a run is shown.

use crate::observe::terminal::is_drawable;

/// Where to show the progress of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Show {
    /// The full-screen dashboard if standard output is a terminal of a usual size, plain lines elsewhere.
    #[default]
    Auto,
    /// Plain lines on standard error.
    Lines,
    /// Plain lines on standard error, one for each step.
    EachStep,
    /// Nothing.
    Nothing,
}

impl Show {
    /// Whether this is the full-screen dashboard.
    pub(crate) fn is_dashboard(self) -> bool {
        cfg!(feature = "tui")
            && self == Self::Auto
            && std::io::IsTerminal::is_terminal(&std::io::stdout())
            && is_drawable()
    }
}
