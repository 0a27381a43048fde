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

/// Hashes `count` blocks of a request that has none yet.
fn hash(blocks: &mut Blocks, idx: u32, hashes: &[u128]) {
    blocks.clear_hashes(RequestIdx(idx));
    for &hash in hashes {
        blocks.push_hash(RequestIdx(idx), BlockHash(hash)).expect("blocks have hashes");
    }
}

#[test]
fn a_block_is_found_by_name_until_it_is_needed_for_another() {
    let mut blocks = Blocks::new(4, 3, 1024, 8);
    let [first, second, third] = [0, 1, 2].map(RequestIdx);
    hash(&mut blocks, 0, &[10, 11, 12]);
    blocks.grow(first, 3);
    assert_eq!(blocks.find(first, 3), 0, "nothing is computed");
    blocks.publish(first, 2);
    hash(&mut blocks, 1, &[10, 11, 99]);
    assert_eq!((blocks.find(second, 3), blocks.find(second, 1)), (2, 1));
    blocks.share(second, 2);
    assert_eq!(blocks.table(second), &blocks.table(first)[..2]);
    assert_eq!((blocks.used(), blocks.free()), (3, 1), "a shared block counts once");
    blocks.release(first);
    assert_eq!(blocks.used(), 2, "the other still holds them");
    blocks.release(second);
    assert_eq!((blocks.used(), blocks.find(second, 3)), (0, 2), "free, and known");
    // The two blocks without a hash go first, then the later one of the two that have one.
    blocks.grow(third, 3);
    assert_eq!((blocks.table(third), blocks.find(second, 3)), (&[2, 3, 1][..], 1));
    blocks.grow(third, 1);
    assert_eq!((blocks.table(third)[3], blocks.find(second, 3)), (0, 0));
}

#[test]
fn a_name_has_one_block_and_keeps_it() {
    let mut blocks = Blocks::new(4, 3, 1024, 8);
    for idx in [0, 1] {
        hash(&mut blocks, idx, &[10]);
        blocks.grow(RequestIdx(idx), 1);
        blocks.publish(RequestIdx(idx), 1);
    }
    let kept = blocks.table(RequestIdx(0))[0];
    blocks.release(RequestIdx(1));
    blocks.release(RequestIdx(0));
    hash(&mut blocks, 2, &[10]);
    blocks.share(RequestIdx(2), 1);
    assert_eq!(blocks.table(RequestIdx(2)), [kept]);
}

#[test]
fn what_victims_share_comes_free_with_the_last_of_them() {
    let mut blocks = Blocks::new(8, 3, 1024, 8);
    hash(&mut blocks, 0, &[10, 11]);
    blocks.grow(RequestIdx(0), 3);
    blocks.publish(RequestIdx(0), 2);
    hash(&mut blocks, 1, &[10, 11]);
    blocks.share(RequestIdx(1), 2);
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
    hash(&mut blocks, 0, &[10, 11, 12]);
    blocks.grow(RequestIdx(0), 3);
    blocks.publish(RequestIdx(0), 3);
    blocks.release(RequestIdx(0));
    assert_eq!((blocks.find(RequestIdx(0), 3), blocks.free()), (2, 8), "the last one went first");
}
