//! Compares checkpoints.

use firebrick_checkpoints::{Change, Checkpoint, Dtype, Folder, Manifest, RankState, Scalar, Section, diff};

use crate::state::{save, whole, whole_state};

#[test]
fn the_number_of_ranks_makes_no_difference() {
    let output = tempfile::tempdir().unwrap();
    let open = |name: &str, ranks| {
        Checkpoint::open(save(&Folder::new(output.path().join(name)), 3, ranks).unwrap().path).unwrap()
    };
    let found = diff(&open("a", 1), &open("b", 4), |_, _| ()).unwrap();
    assert!(found.is_empty(), "{found:?}");
    assert_eq!(found.equal, 12);
}

#[test]
fn every_difference_is_reported() {
    let output = tempfile::tempdir().unwrap();
    let folder = Folder::new(output.path());
    let saved = |step, edit: &dyn Fn(&mut RankState)| {
        let mut state = whole_state(1);
        edit(&mut state);
        let staging = folder.staging(step, "a");
        let files = staging.write_rank(&state).unwrap();
        let saved = staging.publish(Manifest::new("run", step, 1, "0.1.0").files(files), "()").unwrap();
        Checkpoint::open(saved.path).unwrap()
    };
    let first = saved(1, &|_| ());
    let second = saved(2, &|state| {
        let mut weight = state.parameters[1].bytes.get().unwrap().to_vec();
        let old = f32::from_le_bytes([weight[4], weight[5], weight[6], weight[7]]);
        weight[4..8].copy_from_slice(&(old + 2.0).to_le_bytes());
        state.parameters[1] = whole("blocks.0.weight", Dtype::F32, &[4, 5], weight);
        state.parameters[2] = whole("scale", Dtype::F16, &[], vec![0; 2]);
        state.parameters[4].name = "looked at".into();
        state.scalars.insert("blocks.0.weight/decay".into(), Scalar::Int(1));
        state.average = None;
    });
    let mut seen = std::cell::Cell::new((0, 0));
    let found = diff(&first, &second, |done, total| seen.set((done, total))).unwrap();
    let shown: Vec<String> = found.changes.iter().map(|change| format!("{change:?}")).collect();
    assert_eq!(found.equal, 6, "{shown:?}");
    let (done, total) = *seen.get_mut();
    assert!(done == total && total > 0);
    let expected = [
        (Section::Parameters, "blocks.0.weight"),
        (Section::Parameters, "scale"),
        (Section::Parameters, "seen"),
        (Section::Parameters, "looked at"),
        (Section::Optimizer, "blocks.0.weight/decay"),
        (Section::Average, "blocks.0.weight"),
        (Section::Average, "embedding.weight"),
    ];
    let names: Vec<_> = found.changes.iter().map(|(section, name, _)| (*section, name.as_str())).collect();
    assert_eq!(names, expected);
    let changes: Vec<&Change> = found.changes.iter().map(|(_, _, change)| change).collect();
    let Change::Values { elements: 1, of: 20, largest } = changes[0] else { panic!("{}", shown[0]) };
    assert!((largest - 2.0).abs() < 1e-6);
    assert!(
        matches!(changes[1], Change::Info { first, second } if first.dtype == Dtype::F32 && second.dtype == Dtype::F16)
    );
    assert_eq!((changes[2], changes[3]), (&Change::OnlyInFirst, &Change::OnlyInSecond));
    assert_eq!(changes[4], &Change::Scalar { first: Scalar::Float(0.1), second: Scalar::Int(1) });
    assert_eq!(changes[6], &Change::OnlyInFirst);
}
