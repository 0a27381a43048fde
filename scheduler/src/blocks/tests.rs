use super::*;

#[test]
fn blocks_come_and_go_in_order() {
    let mut blocks = Blocks::new(4, 2, 1024, 0);
    blocks.grow(RequestIdx(1), 2);
    blocks.grow(RequestIdx(0), 1);
    blocks.grow(RequestIdx(1), 1);
    assert_eq!(blocks.table(RequestIdx(1)), [0, 1, 3]);
    assert_eq!(blocks.table(RequestIdx(0)), [2]);
    assert_eq!((blocks.free(), blocks.used()), (0, 4));
    blocks.release(RequestIdx(1));
    blocks.grow(RequestIdx(0), 3);
    assert_eq!(blocks.table(RequestIdx(0)), [2, 0, 1, 3]);
    assert_eq!(blocks.held(RequestIdx(1)), 0);
    blocks.truncate(RequestIdx(0), 2);
    assert_eq!((blocks.table(RequestIdx(0)), blocks.free()), (&[2, 0][..], 2));
}

#[test]
fn a_block_is_found_by_name_until_it_is_needed_for_another() {
    let mut blocks = Blocks::new(4, 3, 1024, 8);
    let [first, second, third] = [0, 1, 2].map(RequestIdx);
    blocks.grow(first, 3);
    let known = [10, 11, 12];
    assert_eq!(blocks.find(&known), 0, "nothing is computed");
    blocks.publish(first, &known[..2]);
    let other = [10, 11, 99];
    assert_eq!((blocks.find(&other), blocks.find(&other[..1])), (2, 1));
    blocks.share(second, &other[..2]);
    assert_eq!(blocks.table(second), &blocks.table(first)[..2]);
    assert_eq!((blocks.used(), blocks.free()), (3, 1), "a shared block counts once");
    blocks.release(first);
    assert_eq!(blocks.used(), 2, "the other still holds them");
    blocks.release(second);
    assert_eq!((blocks.used(), blocks.find(&other)), (0, 2), "free, and known");
    // The two blocks without a hash go first, then the later one of the two that have one.
    blocks.grow(third, 3);
    assert_eq!((blocks.table(third), blocks.find(&other)), (&[2, 3, 1][..], 1));
    blocks.grow(third, 1);
    assert_eq!((blocks.table(third)[3], blocks.find(&other)), (0, 0));
}

/// A mark is that of a known block, until it is taken back or the block is forgotten.
#[test]
fn known_blocks_are_found_up_to_the_last_marked_one() {
    let mut blocks = Blocks::new(4, 2, 1024, 8).with_marked_only();
    let [first, second] = [0, 1].map(RequestIdx);
    let known = [10, 11, 12];
    blocks.grow(first, 3);
    blocks.set_resumable(1, true);
    assert!(!blocks.is_resumable(1), "it is not known");
    blocks.publish(first, &known);
    assert_eq!((blocks.known(&known), blocks.find(&known)), (3, 0));
    blocks.set_resumable(1, true);
    assert_eq!((blocks.find(&known), blocks.find(&known[..1]), blocks.known(&[10, 9])), (2, 0, 1));
    blocks.set_resumable(0, true);
    blocks.set_resumable(1, false);
    assert_eq!((blocks.find(&known), blocks.block_of(11)), (1, Some(1)));
    blocks.release(first);
    blocks.grow(second, 4);
    assert_eq!((blocks.known(&known), blocks.is_resumable(0)), (0, false));
}

#[test]
fn a_name_has_one_block_and_keeps_it() {
    let mut blocks = Blocks::new(4, 3, 1024, 8);
    for idx in [0, 1] {
        blocks.grow(RequestIdx(idx), 1);
        blocks.publish(RequestIdx(idx), &[10]);
    }
    let kept = blocks.table(RequestIdx(0))[0];
    blocks.release(RequestIdx(1));
    blocks.release(RequestIdx(0));
    blocks.share(RequestIdx(2), &[10]);
    assert_eq!(blocks.table(RequestIdx(2)), [kept]);
}

#[test]
fn what_victims_share_comes_free_with_the_last_of_them() {
    let mut blocks = Blocks::new(8, 3, 1024, 8);
    blocks.grow(RequestIdx(0), 3);
    blocks.publish(RequestIdx(0), &[10, 11]);
    blocks.share(RequestIdx(1), &[10, 11]);
    blocks.grow(RequestIdx(1), 1);
    let trial = |blocks: &mut Blocks, order: [u32; 2]| {
        let freed = order.map(|idx| blocks.try_release(RequestIdx(idx)));
        order.iter().for_each(|&idx| blocks.end_trial(RequestIdx(idx)));
        freed
    };
    assert_eq!(trial(&mut blocks, [0, 1]), [1, 3]);
    assert_eq!(trial(&mut blocks, [1, 0]), [1, 3]);
    assert_eq!(blocks.used(), 4);
    blocks.release(RequestIdx(0));
    assert_eq!(blocks.try_release(RequestIdx(1)), 3);
}

#[test]
fn no_more_blocks_are_kept_for_their_content_than_asked() {
    let mut blocks = Blocks::new(8, 2, 1024, 2);
    blocks.grow(RequestIdx(0), 3);
    blocks.publish(RequestIdx(0), &[10, 11, 12]);
    blocks.release(RequestIdx(0));
    assert_eq!((blocks.find(&[10, 11, 12]), blocks.free()), (2, 8), "the last one went first");
}
