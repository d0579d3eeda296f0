//! What ranks send, as the papers count it.

use firebrick_world::Kind;

use super::*;

/// Counts the elements of the parameters, padded for `ranks` ranks that share them, in blocks and outside blocks. For each:
/// all sharded elements, the trained ones among them, and the trained elements that are not sharded.
fn elements(stage: u8, ranks: usize) -> [[usize; 3]; 2] {
    struct Count {
        stage: u8,
        ranks: usize,
        names: Vec<String>,
        seen: Vec<ParamId>,
        found: [[usize; 3]; 2],
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
            let in_block = self.names[0] == "blocks" && self.names[2] != "tied";
            let [all, sharded, small] = &mut self.found[usize::from(!in_block)];
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
    let mut count = Count { stage, ranks, names: vec![], seen: vec![], found: [[0; 3]; 2] };
    Model::new(&device()).visit(&mut count);
    count.found
}

/// The total traffic of all ranks.
#[test]
fn what_is_sent_is_what_the_equations_say() {
    let k = MICRO_BATCHES;
    // Each rank has rows, because a rank without rows sends no gradients.
    for n in counts(&[1, 2, 3, 6]) {
        for stage in 0..=3 {
            let zero = |is_here: bool| is_here.then(|| zero(stage));
            // Stages 0 and 1 reduce once per window, stages 2 and 3 in each backward pass.
            let recipe = Stack::new(Stack::new(zero(stage >= 2), Accumulate(k)), zero(stage < 2));
            let spawn = |world| {
                let recipe = recipe.clone();
                std::thread::spawn(move || rank_counted(world, recipe, Communicator::traffic).unwrap().1)
            };
            let ranks: Vec<_> = World::threads(n).join().unwrap().into_iter().map(spawn).collect();
            let traffic: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
            let sent = |kind| traffic.iter().map(|rank| rank.of(kind).elements as usize).sum::<usize>();
            let [[units, units_trained, units_small], [root, root_trained, root_small]] = elements(stage, n);
            let (trained, small) = (units_trained + root_trained, units_small + root_small);
            let expected = match stage {
                0 => [0, 0, 2 * small],
                1 => [trained, units + root, 2 * small],
                2 => [k * trained, units + root, 2 * k * small],
                _ => [k * trained, k * (2 * units + root), 2 * k * small],
            };
            let found = [Kind::ReduceScatter, Kind::AllGather, Kind::AllReduce].map(sent);
            let all = expected.map(|elements| UPDATES * (n - 1) * elements);
            assert_eq!(found, all, "stage {stage}, {n} ranks");
        }
    }
}

/// Groups send within what one group alone would send, and each shard's gradients are also summed over the copies.
#[test]
fn copies_send_the_shards_of_gradients_to_one_another() {
    let k = MICRO_BATCHES;
    for (each, copies) in [(2, 3), (3, 2), (1, 3), (3, 1), (1, 2)] {
        // Each rank has rows, because a rank without rows sends no gradients.
        let n = each * copies;
        for stage in 1..=3 {
            let recipe = hybrid(stage, each);
            let spawn = |world| {
                let recipe = recipe.clone();
                std::thread::spawn(move || rank_counted(world, recipe, Communicator::traffic).unwrap().1)
            };
            let ranks: Vec<_> = World::threads(n).join().unwrap().into_iter().map(spawn).collect();
            let traffic: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
            let sent = |kind| traffic.iter().map(|rank| rank.of(kind).elements as usize).sum::<usize>();
            let [[units, units_trained, units_small], [root, root_trained, root_small]] =
                elements(stage, each);
            let (trained, small) = (units_trained + root_trained, units_small + root_small);
            let times = if stage == 1 { 1 } else { k };
            let within = copies * (each - 1);
            let gathered = if stage == 3 { k * (2 * units + root) } else { units + root };
            let expected = [
                within * times * trained,
                within * gathered,
                2 * (n - 1) * times * small + 2 * (copies - 1) * times * trained,
            ];
            let found = [Kind::ReduceScatter, Kind::AllGather, Kind::AllReduce].map(sent);
            assert_eq!(
                found,
                expected.map(|elements| UPDATES * elements),
                "stage {stage}, {copies} of {each}"
            );
        }
    }
}
