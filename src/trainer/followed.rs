//! How a run is followed: its observers, what it shows, the steps whose timelines it records, and what interrupts it.

use burn::train::Interrupter;

use super::{Interrupted, Trainer};
use crate::observe::observer::Observer;
use crate::observe::terminal::Show;

impl<M: 'static> Trainer<M> {
    /// Adds an observer, which sees each step, evaluation and save, and the end of the run.
    pub fn observe(mut self, observer: impl Observer + 'static) -> Self {
        self.observers.add(observer);
        self
    }

    /// Sets how to show the progress.
    pub fn show(self, show: Show) -> Self {
        Self { show, ..self }
    }

    /// Sets the run's name in the progress display.
    pub fn label(self, label: impl Into<String>) -> Self {
        Self { label: label.into(), ..self }
    }

    /// Stops at the next step boundary once this handle requests it, and saves everything.
    pub fn interrupter(self, interrupter: Interrupter) -> Self {
        Self { interrupter: Interrupted(interrupter), ..self }
    }

    /// Records the timelines of these updates, counted from 1: on each rank, the begin and end of each block's forward and
    /// backward pass, of each exchange between the ranks and of each wait for it, and of the update. Default: none.
    ///
    /// [Observers](Observer::timeline) receive them, and the output folder has `timeline-STEP.json` for each, which
    /// [Perfetto](https://ui.perfetto.dev) and `chrome://tracing` open. Nothing waits for a device: on one that computes
    /// asynchronously, the times of a computation are those of its submission. Choose steps after the first ones,
    /// which also allocate memory, and on a GPU compile and tune kernels.
    ///
    /// ```
    /// # use burn::tensor::Device;
    /// # use firebrick::*;
    /// # use firebrick::datasets::Windows;
    /// # use firebrick::optim::AdamW;
    /// # use firebrick_models::GptConfig;
    /// use std::sync::mpsc::{Sender, channel};
    ///
    /// use firebrick::observe::timeline::StepTimeline;
    /// use firebrick::world::Link;
    ///
    /// struct Timelines(Sender<StepTimeline>);
    ///
    /// impl Observer for Timelines {
    ///     fn timeline(&mut self, timeline: &StepTimeline) {
    ///         let _ = self.0.send(timeline.clone());
    ///     }
    /// }
    ///
    /// # let data = Data::new(Windows::new((0..99).map(|i| i % 7).collect::<Vec<u32>>(), 8)?);
    /// # let config = GptConfig { layers: 2, heads: 1, width: 8, dropout: 0.0, bias: true, tied: true };
    /// # let model = config.init(7, 8, &Device::flex().autodiff());
    /// let (sender, timelines) = channel();
    /// // Two ranks that a gigabit network connects.
    /// let world = World::threads(2).over_link(Link::new(125e6));
    /// let trainer = Trainer::new().over(world).with(Zero::stage(2)).steps(3).timeline([2]);
    /// trainer.observe(Timelines(sender)).fit(model, AdamW::new().init()?, Schedule::constant(1e-3), data)?;
    /// let timeline = timelines.recv().unwrap();
    /// assert_eq!((timeline.step, timeline.ranks.len()), (2, 2));
    /// assert!(timeline.ranks[1].events.iter().any(|event| event.name == "blocks.1"));
    /// # Ok::<(), TrainError>(())
    /// ```
    pub fn timeline(self, steps: impl IntoIterator<Item = u64>) -> Self {
        self.set(|settings| settings.timeline = steps.into_iter().collect())
    }
}
