//! The adapter of this crate on Soft-RoCE, in virtual machines of `scripts/rxe-vm`: one for each
//! test, because each keeps less than one processor busy.

use pollux_referee::soft_roce;

/// Runs a command of the guest's program; returns its output. `None` if the test is skipped.
fn run(test: &str, command: &str) -> Option<String> {
    let built = soft_roce::built(test, "pollux-ibverbs", &["--example", "rxe-guest"])?;
    let program = built.join("examples/rxe-guest");
    let text = soft_roce::run(&[program], 600, &format!("rxe-guest {command}"));
    print!("{text}");
    Some(text)
}

fn count_summaries(text: &str) -> usize {
    text.lines().filter(|line| line.starts_with("rxe, ")).count()
}

#[test]
fn one_adapter_of_soft_roce_honors_the_contract() {
    let test = "one_adapter_of_soft_roce_honors_the_contract";
    let Some(text) = run(test, "conformance one") else { return };
    assert_eq!(count_summaries(&text), 1, "{text}");
}

#[test]
fn two_adapters_of_soft_roce_honor_the_contract() {
    let test = "two_adapters_of_soft_roce_honor_the_contract";
    let Some(text) = run(test, "conformance two") else { return };
    assert_eq!(count_summaries(&text), 1, "{text}");
}

#[test]
fn soft_roce_survives_faults() {
    let Some(text) = run("soft_roce_survives_faults", "faults") else { return };
    assert!(text.contains("faults: 3 passed, 0 failed"), "{text}");
}
