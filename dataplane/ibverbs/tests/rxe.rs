//! The adapter of this crate on Soft-RoCE, in the virtual machine of `scripts/rxe-vm`.

use pollux_referee::soft_roce;

#[test]
fn soft_roce_honors_the_contract_and_survives_faults() {
    let test = "soft_roce_honors_the_contract_and_survives_faults";
    let Some(built) = soft_roce::built(test, "pollux-ibverbs", &["--example", "rxe-guest"]) else {
        return;
    };
    let command = "rxe-guest conformance one && rxe-guest conformance two && rxe-guest faults";
    let text = soft_roce::run(&[built.join("examples/rxe-guest")], 600, command);
    print!("{text}");
    let summaries = text.lines().filter(|line| line.starts_with("rxe, ")).count();
    assert_eq!(summaries, 2, "{text}");
    assert!(text.contains("faults: 3 passed, 0 failed"), "{text}");
}
