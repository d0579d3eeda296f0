//! The allocations of a pass in their order, and what they are at another width.

use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::PassPeak;
use super::account::{Counters, current, of};

/// The most events of a pass. A pass of a few blocks has some ten thousand.
const MOST: usize = 1 << 19;

/// Events of fewer bytes are left out, from the first of these on with which passes are alike.
const FLOORS: [i64; 7] = [0, 1 << 8, 1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18];

/// The account whose events are recorded, or 0.
static RECORDED: AtomicU8 = AtomicU8::new(0);

/// The place of the next event.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// The recorded events: the kind in the upper three bits, and below it the bytes, in two's complement.
static EVENTS: OnceLock<Box<[AtomicU64]>> = OnceLock::new();

/// What happens to an account while a pass is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum Kind {
    /// The pass begins.
    Begin,
    /// A block is allocated.
    Allocated,
    /// A block is freed.
    Freed,
    /// Gradients of a recomputed segment are there to stay.
    Left,
    /// Parameters have come that outlive the pass.
    Come,
}

const KINDS: [Kind; 5] = [Kind::Begin, Kind::Allocated, Kind::Freed, Kind::Left, Kind::Come];

/// The bits of an event's bytes.
const BITS: u32 = 61;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Event {
    kind: Kind,
    bytes: i64,
}

impl Event {
    fn word(self) -> u64 {
        (self.kind as u64) << BITS | (self.bytes as u64 & ((1 << BITS) - 1))
    }

    fn of_word(word: u64) -> Self {
        let unused = u64::BITS - BITS;
        Self {
            kind: KINDS[(word >> BITS) as usize % KINDS.len()],
            bytes: ((word << unused) as i64) >> unused,
        }
    }
}

/// Notes an event of an account, if it is recorded. Does not allocate, since the allocator calls it.
pub(super) fn note(counters: &Counters, kind: Kind, bytes: usize) {
    let recorded = RECORDED.load(Relaxed);
    if recorded != 0 && std::ptr::eq(counters, of(recorded)) {
        let place = EVENTS.get().and_then(|events| events.get(NEXT.fetch_add(1, Relaxed)));
        if let Some(place) = place {
            place.store(Event { kind, bytes: bytes as i64 }.word(), Relaxed);
        }
    }
}

/// Does each piece of work, in order. While a pass is recorded, the second piece comes last, and those after it are recorded as one
/// event, of what they leave allocated. So passes with more pieces have no more events.
pub(crate) fn repeated<T>(pieces: impl IntoIterator<Item = T>, mut work: impl FnMut(T)) {
    let mut pieces = pieces.into_iter();
    if !is_recorded() {
        return pieces.for_each(work);
    }
    let account = current();
    pieces.next().into_iter().for_each(&mut work);
    let Some(second) = pieces.next() else { return };
    let before = of(account).tensors();
    RECORDED.store(0, Relaxed);
    pieces.for_each(&mut work);
    RECORDED.store(account, Relaxed);
    note(of(account), Kind::Allocated, of(account).tensors().saturating_sub(before));
    work(second);
}

/// Whether this thread's pass is recorded.
pub(crate) fn is_recorded() -> bool {
    let account = current();
    account != 0 && RECORDED.load(Relaxed) == account
}

/// What a pass allocates and frees on an [`Account`](super::Account) for float tensors, in order.
///
/// Passes of a model at several widths, or with several numbers of rows, differ in the bytes of each allocation, not in their
/// order, and those bytes are a polynomial of the width: a constant, a row of activations, or a matrix. So the passes of narrow
/// models tell what a wide one takes, [exactly](Self::extended).
///
/// ```
/// use firebrick_kernels::memory::{Account, Allocations, Beyond, Counting};
/// use burn::tensor::Device;
///
/// #[global_allocator]
/// static ALLOCATOR: Counting = Counting;
///
/// let device = Device::flex();
/// let account = Account::new();
/// let _on_it = account.enter();
/// let pass = |width: usize| {
///     let pass = || {
///         let beyond = Beyond::begin(&device);
///         let rows = vec![1u8; 1000 * width];
///         let matrix = vec![1u8; 300 * width * width];
///         drop((rows, matrix));
///         beyond.end(&device)
///     };
///     let (peak, allocations) = Allocations::record(pass);
///     (peak, allocations.unwrap())
/// };
/// let narrow = [1, 2, 3].map(|width| pass(width).1);
/// let wide = Allocations::extended(&narrow, 1, 50).unwrap();
/// assert_eq!(wide.peak(), pass(50).0);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocations(Vec<Event>);

impl Allocations {
    /// Runs a pass, measured by [`Beyond`](super::Beyond), and returns what it allocates on the account of this thread.
    /// `None` if the thread is on none, if nothing counts, or if there are too many. One thread of the process records at a
    /// time; others wait.
    pub fn record<T>(pass: impl FnOnce() -> T) -> (T, Option<Self>) {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        struct Stop;
        impl Drop for Stop {
            fn drop(&mut self) {
                RECORDED.store(0, Relaxed);
            }
        }
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let events = EVENTS.get_or_init(|| {
            // They outlive the account.
            let _apart = super::apart();
            (0..MOST).map(|_| AtomicU64::new(0)).collect()
        });
        NEXT.store(0, Relaxed);
        let stop = Stop;
        RECORDED.store(current(), Relaxed);
        let result = pass();
        drop(stop);
        let recorded = NEXT.load(Relaxed);
        let events = events.get(..recorded).filter(|events| !events.is_empty());
        let all = events
            .map(|events| Self(events.iter().map(|event| Event::of_word(event.load(Relaxed))).collect()));
        (result, all)
    }

    /// Returns the allocations of the same pass through a model of `width` units, from those of models of `first` units, one
    /// more and two more. `None` if the three are not alike: if they differ in the order of what they allocate, or in sizes
    /// that no polynomial of the second degree has.
    pub fn extended(narrow: &[Self; 3], first: usize, width: usize) -> Option<Self> {
        Self::between(narrow.each_ref(), |[one, two, three]| {
            let (near, far) = (two - one, three - two);
            let further = width as i64 - first as i64;
            // A row that is rounded up to whole blocks may seem to bend down a little.
            let is_straight = far >= 0 && far < near && (near - far) * 8 <= three;
            if is_straight {
                return Some(one + (three - one) * further / 2);
            }
            // Newton's form through three points.
            let bytes = one + near * further + (far - near) * (further * (further - 1) / 2);
            (near >= 0 && far >= near).then_some(bytes)
        })
    }

    /// Returns the allocations of the same pass with so many `rows`, from those of two passes with the rows beside them: each
    /// size is on a straight line. `None` if the two are not alike.
    pub fn with_rows([one, two]: [(&Self, usize); 2], rows: usize) -> Option<Self> {
        let [few, more] = [one.1 as i64, two.1 as i64];
        Self::between([one.0, two.0], |[one, two]| {
            let bytes = one + (two - one) * (rows as i64 - few) / (more - few).max(1);
            (two >= one).then_some(bytes.max(0))
        })
    }

    /// Returns the events whose bytes `extended` gives for those of several passes, without small blocks as far as these differ.
    fn between<const N: usize>(
        passes: [&Self; N],
        extended: impl Fn([i64; N]) -> Option<i64>,
    ) -> Option<Self> {
        FLOORS.iter().find_map(|floor| {
            let all = passes.map(|one| one.in_runs(*floor));
            if all.iter().any(|one| one.len() != all[0].len()) {
                return None;
            }
            let events = all[0].iter().enumerate().map(|(at, first)| {
                let kind = first.kind;
                if all.iter().any(|one| one[at].kind != kind) {
                    return None;
                }
                let bytes = all.each_ref().map(|one| one[at].bytes);
                // What has come may be less than what has gone for it.
                let bytes = match bytes.iter().any(|bytes| *bytes < 0) {
                    true => -extended(bytes.map(|bytes| -bytes))?,
                    false => extended(bytes)?,
                };
                Some(Event { kind, bytes })
            });
            events.collect::<Option<Vec<_>>>().map(Self)
        })
    }

    /// Returns the events without blocks of fewer bytes than `floor`. Blocks that are freed one after another count as one:
    /// their order may be that of a map, and tells nothing about the peak.
    fn in_runs(&self, floor: i64) -> Vec<Event> {
        let mut runs: Vec<Event> = Vec::new();
        for event in &self.0 {
            let is_block = matches!(event.kind, Kind::Allocated | Kind::Freed);
            match runs.last_mut() {
                _ if is_block && event.bytes < floor => (),
                Some(last) if last.kind == Kind::Freed && event.kind == Kind::Freed => {
                    last.bytes += event.bytes
                }
                _ => runs.push(*event),
            }
        }
        runs
    }

    /// Returns the peak of the pass, as [`Beyond::end`](super::Beyond::end) does.
    pub fn peak(&self) -> PassPeak {
        let [mut live, mut peak, mut gradients, mut come] = [0i64; 4];
        let [mut most, mut most_beyond] = [0i64; 2];
        for Event { kind, bytes } in &self.0 {
            match kind {
                Kind::Begin => [live, peak, gradients, come, most, most_beyond] = [0; 6],
                Kind::Allocated => {
                    live += bytes;
                    peak = peak.max(live);
                }
                Kind::Freed => live -= bytes,
                Kind::Left => {
                    most = most.max(peak);
                    most_beyond = most_beyond.max(peak - gradients);
                    gradients += bytes;
                    peak = live;
                }
                Kind::Come => come += bytes,
            }
        }
        let beyond = |most: i64| usize::try_from(most - come).unwrap_or(0);
        PassPeak { activations: beyond(most_beyond), most: beyond(most) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(events: &[(Kind, i64)]) -> Allocations {
        Allocations(events.iter().map(|(kind, bytes)| Event { kind: *kind, bytes: *bytes }).collect())
    }

    #[test]
    fn an_event_is_a_word() {
        for kind in KINDS {
            for bytes in [0, 1, -1, 1 << 40, -(1 << 40)] {
                let event = Event { kind, bytes };
                assert_eq!(Event::of_word(event.word()), event);
            }
        }
    }

    #[test]
    fn the_peak_of_a_wide_pass_may_be_at_another_place() {
        use Kind::{Allocated, Begin, Freed, Left};
        // First rows of activations, then a matrix.
        let of = |w: i64| {
            pass(&[
                (Begin, 0),
                (Allocated, 1000 * w),
                (Allocated, 40),
                (Freed, 1000 * w),
                (Allocated, 10 * w * w),
                (Left, 10 * w * w),
                (Allocated, 7 * w),
                (Freed, 40),
                (Left, 0),
            ])
        };
        let narrow = [1, 2, 3].map(of);
        let wide = Allocations::extended(&narrow, 1, 200).unwrap();
        assert_eq!(wide.0, of(200).in_runs(0));
        assert_eq!(narrow[2].peak(), PassPeak { activations: 3040, most: 3040 });
        let most = 10 * 200 * 200 + 40 + 7 * 200;
        assert_eq!(wide.peak(), PassPeak { activations: 10 * 200 * 200 + 40, most: most as usize });
    }

    #[test]
    fn rows_are_on_a_straight_line() {
        use Kind::{Allocated, Begin, Come, Freed, Left};
        let of = |rows: i64| {
            pass(&[
                (Begin, 0),
                (Come, -100),
                (Allocated, 5000),
                (Allocated, 64 * rows),
                (Freed, 5000),
                (Allocated, 32 * rows),
                (Left, 0),
            ])
        };
        let many = Allocations::with_rows([(&of(2), 2), (&of(4), 4)], 1000).unwrap();
        assert_eq!(many, of(1000));
        assert_eq!(many.peak(), PassPeak { activations: 96_100, most: 96_100 });
        let other = pass(&[(Begin, 0), (Left, 0)]);
        assert_eq!(Allocations::with_rows([(&of(2), 2), (&other, 4)], 9), None);
    }

    #[test]
    fn what_is_freed_at_once_has_no_order() {
        use Kind::{Allocated, Begin, Freed, Left};
        let of = |w: i64, is_turned: bool| {
            let mut freed = [(Freed, 100 * w), (Freed, 7 * w * w)];
            if is_turned {
                freed.reverse();
            }
            let [one, other] = freed;
            pass(&[
                (Begin, 0),
                (Allocated, 100 * w),
                (Allocated, 7 * w * w),
                one,
                other,
                (Allocated, w),
                (Left, 0),
            ])
        };
        let wide = Allocations::extended(&[of(1, false), of(2, true), of(3, false)], 1, 40).unwrap();
        assert_eq!(wide.peak(), of(40, false).peak());
    }

    #[test]
    fn rows_of_whole_blocks_are_straight() {
        use Kind::{Allocated, Begin, Freed, Left};
        let row = |w: i64| 4 * ((1908 * w + 511) / 512 * 512);
        let of = |w: i64| pass(&[(Begin, 0), (Allocated, row(w)), (Freed, row(w)), (Left, 0)]);
        assert_eq!([2, 3, 4].map(row), [4 * 4096, 4 * 6144, 4 * 7680]);
        let wide = Allocations::extended(&[2, 3, 4].map(of), 2, 16).unwrap();
        assert_eq!((wide.peak().most, of(16).peak().most), (4 * 29_184, 4 * 30_720));
    }

    #[test]
    fn passes_that_differ_in_small_blocks_are_alike_in_the_others() {
        use Kind::{Allocated, Begin, Freed};
        let of = |w: i64, small: i64| {
            let mut events = vec![(Begin, 0), (Allocated, 5000 * w), (Freed, 5000 * w)];
            events.splice(1..1, (0..small).flat_map(|_| [(Allocated, 30), (Freed, 30)]));
            pass(&events)
        };
        let wide = Allocations::extended(&[of(1, 1), of(2, 0), of(3, 2)], 1, 9).unwrap();
        assert_eq!(wide.peak(), of(9, 0).peak());
    }

    #[test]
    fn passes_that_are_not_alike_extend_to_none() {
        use Kind::{Allocated, Freed};
        let large = 1 << 20;
        let two = |first: i64, second: i64| pass(&[(Allocated, first * large), (Freed, second * large)]);
        // Blocks that change places, and a block more.
        assert_eq!(Allocations::extended(&[two(1, 1), two(2, 4), two(9, 3)], 1, 9), None);
        assert_eq!(Allocations::extended(&[two(1, 1), two(2, 2), pass(&[(Allocated, large)])], 1, 9), None);
    }
}
