//! The seconds of an update: by hand, and what never makes them longer.

use firebrick_strategies::{Accumulate, Amp, Mesh, StrategyRecipe, Zero};

use super::super::cluster::Collectives;
use super::*;

/// Two blocks of a million elements, and a hundred thousand elsewhere.
const PARAMS: [([usize; 2], bool); 3] = [([1000, 1000], true), ([1000, 1000], true), ([1000, 100], false)];

fn params() -> impl Iterator<Item = PlannedParam<'static>> {
    let params = PARAMS.iter().enumerate();
    params.map(|(place, (shape, in_block))| PlannedParam {
        in_last_block: place == 1,
        ..param(shape, *in_block)
    })
}

/// A trained parameter in bf16 with an f32 master.
pub(super) fn param(shape: &[usize], in_block: bool) -> PlannedParam<'_> {
    PlannedParam {
        shape,
        master_bytes: 4,
        replica_bytes: 2,
        is_trained: true,
        in_block,
        in_last_block: false,
        is_factor: false,
        packing: None,
    }
}

/// Two nodes of two devices: 1 GB/s within a node, and 1 GB/s of each device to the other one.
fn cluster() -> Cluster {
    "nodes=2,gpus=2,intra=1GB/s,inter=2GB/s,latency=0s".parse().unwrap()
}

/// Two micro-batches.
fn order(stage: u8, within: Option<usize>) -> Order {
    let zero = Zero::stage(stage);
    let zero = if let Some(within) = within { zero.within(within) } else { zero };
    let [zero, amp, sum] = [zero.effects(), Amp::bf16().effects(), Accumulate(2).effects()];
    Order::of([zero, amp, sum]).unwrap()
}

fn time(stage: u8, within: Option<usize>, sums_overlap: bool, cluster: &Cluster) -> StepTime {
    let order = order(stage, within);
    let traffic = Traffic::of(params, &order, cluster.ranks());
    let flops = PassFlops {
        forward_in_blocks: 1e9,
        forward_elsewhere: 1e9,
        backward_in_blocks: 6e9,
        backward_elsewhere: 2e9,
    };
    let step = Step {
        cluster,
        order: &order,
        blocks: 2,
        flops,
        speed: 1e12,
        traffic: &traffic,
        within: &WithinABatch::default(),
        sums_overlap,
    };
    step.time()
}

/// In ms: two micro-batches take 20, and what goes within a batch 4. The next stage is on the other node: a state takes 1, and the sum
/// of what both stages have 3.
#[test]
fn seconds_of_a_mesh_are_those_of_the_equation() {
    let sent = |bytes| Sent { elements: bytes / 2, bytes };
    let within = WithinABatch {
        layers: [(Collective::AllGather, sent(3_000_000)), (Collective::ReduceScatter, sent(1_000_000))]
            .into(),
        states: sent(2_000_000),
        outside: sent(3_000_000),
        ..WithinABatch::default()
    };
    let mesh = Mesh::new().tensor(2).pipeline(2);
    let of = [Zero::stage(0).effects(), Amp::bf16().effects(), Accumulate(2).effects(), mesh.effects()];
    let (cluster, order) = (cluster(), Order::of(of).unwrap());
    let flops = PassFlops {
        forward_in_blocks: 1e9,
        forward_elsewhere: 1e9,
        backward_in_blocks: 6e9,
        backward_elsewhere: 2e9,
    };
    let traffic = Traffic::of(params, &order, 1);
    let step = Step {
        cluster: &cluster,
        order: &order,
        blocks: 2,
        flops,
        speed: 1e12,
        traffic: &traffic,
        within: &within,
        sums_overlap: true,
    };
    let time = step.time();
    // The bubble is half of the 24, and the ways of a state and of its gradient.
    let (bubble, sends) = (12.0 + 2.0, 2.0);
    assert!((time.step_seconds - (24.0 + bubble + 3.0) / 1e3).abs() < 1e-9, "{time:?}");
    assert!((time.communication_seconds - (4.0 + sends + 3.0) / 1e3).abs() < 1e-9, "{time:?}");
    assert!((time.compute_seconds - 0.020).abs() < 1e-9, "{time:?}");
}

/// In ms: a block computes 0.5 forward and 3 backward, the rest 1 and 2. Of the bytes that a rank sends, two thirds leave
/// its node, at 1 GB/s: a gather or a sum takes 1 for a block and 0.1 for the rest in bf16.
#[test]
fn seconds_are_those_of_the_equation() {
    let check = |name: &str, time: StepTime, step: f64, communication: f64| {
        let expected = StepTime {
            compute_seconds: 0.020,
            communication_seconds: communication / 1e3,
            exposed_seconds: step / 1e3 - 0.020,
            step_seconds: step / 1e3,
        };
        let parts = |time: &StepTime| {
            [time.compute_seconds, time.communication_seconds, time.exposed_seconds, time.step_seconds]
        };
        let close = std::iter::zip(parts(&time), parts(&expected)).all(|(a, b)| (a - b).abs() < 1e-9);
        assert!(close, "{name}: {time:?}, not {expected:?}");
    };
    let plain = cluster();
    // f32: 2 · 3/4 · 2.1 M elements once.
    check("stage 0", time(0, None, false, &plain), 20.0 + 8.4, 8.4);
    // The first block computes while the second one's new parameters arrive, which take 1 each in bf16.
    check("stage 1", time(1, None, false, &plain), 20.0 + 4.2 + 2.1 - 0.5, 4.2 + 2.1);
    // Each block's sum in each micro-batch, and new parameters in bf16.
    check("stage 2", time(2, None, false, &plain), 2.0 * (10.0 + 2.0 + 0.1) + 2.1 - 0.5, 2.0 * 2.1 + 2.1);
    check("stage 2, overlapping", time(2, None, true, &plain), 2.0 * (10.0 + 1.0 + 0.1) + 2.1 - 0.5, 6.3);
    let forward = 1.0 + (1.0 + 1.0 + 0.5);
    let backward = 2.0 + (3.0 + 3.0 + 2.0) + 0.1;
    check("stage 3", time(3, None, false, &plain), 2.0 * (forward + backward) + 0.1, 2.0 * 5.1 + 0.1);
    let backward = 2.0 + (3.0 + 3.0 + 1.0) + 0.1;
    check(
        "stage 3, overlapping",
        time(3, None, true, &plain),
        2.0 * (forward + backward) + 0.1,
        2.0 * 5.1 + 0.1,
    );
    // Half a block within the node, and half of its gradients to the other one.
    let backward = 2.0 + (3.0 + 3.0 + 2.0 * 2.0) + 0.2;
    check(
        "hybrid",
        time(3, Some(2), false, &plain),
        2.0 * (forward + backward) + 0.1,
        2.0 * (3.0 + 4.0 + 0.2) + 0.1,
    );
    // A sum that all ranks get takes two hops: in stage 0 one of the blocks and one of the rest.
    let late = Cluster { latency: 0.001, ..cluster() };
    check("stage 0, late", time(0, None, false, &late), 20.0 + 8.4 + 4.0, 8.4 + 4.0);
    // 4 ranks in a ring: 3 hops, twice.
    let ring = Cluster { collectives: Collectives::Ring, ..late };
    check("stage 0, ring", time(0, None, false, &ring), 20.0 + 12.6 + 12.0, 12.6 + 12.0);
}

/// More bandwidth, a shorter latency and overlap never make an update longer, and nothing is exposed that is not sent.
#[test]
fn better_links_never_make_an_update_longer() {
    for collectives in [Collectives::Direct, Collectives::Ring] {
        for (stage, within) in [(0, None), (1, None), (2, None), (3, None), (3, Some(2))] {
            for sums_overlap in [false, true] {
                let of = |intra: f64, inter: f64, latency: f64| {
                    let cluster = Cluster { intra, inter, latency, collectives, ..cluster() };
                    let found = time(stage, within, sums_overlap, &cluster);
                    assert!(found.exposed_seconds <= found.communication_seconds + 1e-12, "{found:?}");
                    assert!(found.exposed_seconds >= 0.0 && found.communication_seconds > 0.0, "{found:?}");
                    found.step_seconds
                };
                let rates: Vec<f64> = (0..30).map(|n| 1e7 * 1.5f64.powi(n)).collect();
                let falls = |steps: Vec<f64>| {
                    let name = format!("stage {stage} within {within:?}, {collectives:?}: {steps:?}");
                    assert!(steps.is_sorted_by(|a, b| a >= b) && steps.first() > steps.last(), "{name}");
                };
                falls(rates.iter().map(|rate| of(1e9, *rate, 0.0)).collect());
                falls(rates.iter().map(|rate| of(*rate, 2e9, 0.0)).collect());
                falls([1e-1, 1e-3, 1e-5].map(|latency| of(1e9, 2e9, latency)).to_vec());
            }
            let [waits, overlaps] = [false, true].map(|so| time(stage, within, so, &cluster()));
            assert!(overlaps.step_seconds <= waits.step_seconds, "stage {stage}");
            assert_eq!(overlaps.communication_seconds, waits.communication_seconds);
        }
    }
}

#[test]
fn one_device_only_computes() {
    let one = "nodes=1,gpus=1,intra=1GB/s".parse().unwrap();
    for stage in 0..=3 {
        let found = time(stage, None, SUMS_OVERLAP, &one);
        assert_eq!((found.communication_seconds, found.exposed_seconds), (0.0, 0.0), "stage {stage}");
        assert!((found.step_seconds - 0.02).abs() < 1e-12);
    }
}
