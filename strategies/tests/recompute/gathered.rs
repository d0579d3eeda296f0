//! What a pass of stage 3 holds of the blocks that it gathers.

use firebrick_kernels::memory::{Account, reset_peak};
use firebrick_strategies::Zero;
use firebrick_world::Communicator;

use super::*;

/// Blocks with many more parameters than activations.
const WIDE: usize = 512;
const BLOCK: usize = WIDE * WIDE * 4;

#[test]
fn the_last_block_stays_for_the_backward_pass_beside_no_other() {
    let _alone = ALONE.lock();
    let device = device();
    if device.memory_pool_usage().is_some() {
        return; // No account counts a device's pool.
    }
    let account = Account::new();
    let _on_it = account.enter();
    let model: Vec<Linear> = (0..4).map(|_| LinearConfig::new(WIDE, WIDE).init(&device)).collect();
    let x = |pass: &Pass| Tensor::<2>::ones([4, WIDE], pass.device());
    // The first product of a thread also allocates what the thread keeps.
    drop(model[0].forward(x(&Pass::train(&device))));
    let mut setup = Setup::new(&model, &device).among(Communicator::rehearsal(2));
    let mut stages = Zero::stage(3).start(&mut setup).unwrap();
    let train = setup.into_pass();
    let master = stages.init_master(model).unwrap();
    let replica = stages.publish(master).unwrap();
    // What a forward pass holds at its end and at its peak, beyond what it began with.
    let forward = |pass: &Pass, replica: &Vec<Linear>| {
        let (entered, pass) = pass.enter(replica).unwrap();
        let x = x(&pass);
        let before = account.usage().unwrap().live;
        reset_peak();
        let run = |block: &Linear, x: Tensor<2>, _: &Pass| block.forward(x);
        let y = entered.iter().fold(x, |x, block| pass.segment(block, x, run));
        let held = account.usage().unwrap();
        pass.check().unwrap();
        drop(y);
        [held.live - before, held.peak - before]
    };
    // The first pass does not know yet which block comes next, and gathers none ahead. A gather also holds what it sends.
    for most in [1, 2] {
        let [after, peak] = forward(&train, &replica);
        assert!((BLOCK..BLOCK * 5 / 4).contains(&after), "{after} bytes stay, not a block");
        assert!(peak < most * BLOCK + BLOCK * 3 / 4, "a peak of {peak} bytes in training, not {most} blocks");
    }
    let [after, peak] = forward(&train.evaluating(train.dtype()), &replica.valid());
    assert!(after < BLOCK / 4, "an evaluation keeps {after} bytes");
    assert!(peak < 2 * BLOCK + BLOCK * 3 / 4, "a peak of {peak} bytes in an evaluation, not two blocks");
}
