//! What ranks send, as the papers count it.

use firebrick_strategies::StrategyRecipe;
use firebrick_world::Collective;

use super::*;

/// Counts the elements of the parameters, padded for `ranks` ranks that share them, in the last block, in the blocks before it,
/// and outside blocks. For each: all sharded elements, the trained ones among them, and the trained elements that are not
/// sharded.
fn elements(stage: u8, ranks: usize) -> [[usize; 3]; 3] {
    struct Count {
        stage: u8,
        ranks: usize,
        names: Vec<String>,
        seen: Vec<ParamId>,
        found: [[usize; 3]; 3],
    }
    impl ModuleVisitor for Count {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.names.push(name.into());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.names.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if self.seen.contains(&param.id) {
                return;
            }
            self.seen.push(param.id);
            let (shape, trained) = (param.shape(), param.is_require_grad());
            let place = match (&*self.names[0], &*self.names[1]) {
                ("blocks", _) if self.names[2] == "tied" => 2,
                ("blocks", "2") => 0,
                ("blocks", _) => 1,
                _ => 2,
            };
            let [all, sharded, small] = &mut self.found[place];
            let elements = shape.num_elements();
            if self.stage == 0 || elements < 40 || shape[0] < self.ranks || self.stage < 3 && !trained {
                *small += if trained { elements } else { 0 };
                return;
            }
            let padded = elements / shape[0] * shape[0].div_ceil(self.ranks) * self.ranks;
            *all += padded;
            *sharded += if trained { padded } else { 0 };
        }
    }
    let mut count = Count { stage, ranks, names: vec![], seen: vec![], found: [[0; 3]; 3] };
    Model::new(&device()).visit(&mut count);
    count.found
}

/// The total traffic of all ranks.
#[test]
fn what_is_sent_is_what_the_equations_say() {
    for n in counts(&[1, 3, 6, 2]) {
        for stage in 0..=3 {
            sent_as_the_equations_say(zero(stage), stage, n, 1);
        }
        for stage in 0..=1 {
            sent_as_the_equations_say(zero(stage).each_micro_batch(), stage, n, 1);
        }
    }
}

/// Groups send within what one group alone would send, and each shard's gradients are also summed over the copies.
#[test]
fn copies_send_the_shards_of_gradients_to_one_another() {
    // What is sent does not depend on the device.
    let all: &[(usize, usize)] = if is_cpu() { &[(2, 3), (3, 2), (1, 3), (1, 2)] } else { &[(1, 2)] };
    for &(each, copies) in all {
        for stage in 1..=3 {
            sent_as_the_equations_say(zero(stage).within(each), stage, each, copies);
        }
    }
}

/// Trains on groups of `each` ranks with a copy each. Each rank has rows, because a rank without rows sends no gradients.
fn sent_as_the_equations_say(zero: Zero, stage: u8, each: usize, copies: usize) {
    let (k, n) = (MICRO_BATCHES, each * copies);
    let each_micro_batch = zero.effects().reduces.unwrap().each_micro_batch;
    let recipe = Composed::new().with(zero).with(Accumulate(k));
    let spawn = |world| {
        let recipe = recipe.clone();
        std::thread::spawn(move || rank_counted(world, recipe, Communicator::traffic).unwrap().1)
    };
    let ranks: Vec<_> = World::threads(n).join().unwrap().into_iter().map(spawn).collect();
    let traffic: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
    let sent = |kind| traffic.iter().map(|rank| rank.of(kind).elements as usize).sum::<usize>();
    let found = elements(stage, each);
    let [all, trained, small] = [0, 1, 2].map(|at| found.iter().map(|place| place[at]).sum::<usize>());
    let [[last, ..], [others, ..], [root, ..]] = found;
    let times = if each_micro_batch { k } else { 1 };
    let gathered = match stage {
        0 => 0,
        // The backward pass begins with the last block, which is still there.
        3 => k * (2 * others + last) + root,
        _ => all,
    };
    let (within, across) = (copies * (each - 1), copies - 1);
    let sums_of_all = 2 * times * ((n - 1) * small + across * trained);
    let expected = [within * times * trained, within * gathered, sums_of_all];
    let found = [Collective::ReduceScatter, Collective::AllGather, Collective::AllReduce].map(sent);
    assert_eq!(found, expected.map(|elements| UPDATES * elements), "stage {stage}, {copies} of {each} ranks");
}
