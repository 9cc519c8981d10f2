//! Open MPI over UCX on the ConnectX in software: ranks at two hosts of a fabric, without shared
//! memory, so that each message between them passes both adapters.
//!
//! `scripts/host-setup --hca` installs it.

mod common;

use common::{Hosts, finish};
use std::path::Path;
use std::process::Command;

/// The environment of the launcher and of all ranks.
const VARIABLES: [&str; 8] = [
    "OMPI_ALLOW_RUN_AS_ROOT=1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
    "OMPI_MCA_pml=ucx",
    "OMPI_MCA_osc=ucx",
    "OMPI_MCA_pml_ucx_tls=any",
    "OMPI_MCA_pml_ucx_devices=any",
    "UCX_NET_DEVICES=mlx5_0:1",
    // Reliable connections, which are made by datagrams. No shared memory, and no TCP.
    "UCX_TLS=rc_verbs,ud_verbs:aux,self",
];
const RANKS_PER_HOST: &str = "2";
const ROUNDS: u64 = 2;

/// Compiles the program of the ranks. Returns its path.
fn compile() -> String {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mpi/exchange.c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("exchange");
    let mut compiler = Command::new("mpicc");
    compiler.args(["-std=c11", "-O1", "-Wall", "-Werror", source, "-o"]).arg(&program);
    let output = compiler.output().unwrap_or_else(|error| {
        panic!("mpicc: {error}; run scripts/host-setup --hca");
    });
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program.display().to_string()
}

mod mpirun {
    use super::*;

    #[test]
    fn four_ranks_exchange_messages_and_add_vectors() {
        let program = compile();
        let hosts = Hosts::new();
        let mut launcher = Command::new("env");
        launcher.args(VARIABLES).args(["mpirun", "--oversubscribe"]);
        for host in [0, 1] {
            if host == 1 {
                launcher.arg(":");
            }
            launcher.args(["-np", RANKS_PER_HOST, "env"]);
            let variables = hosts.variables(host).iter();
            launcher.args(variables.map(|(name, value)| format!("{name}={value}")));
            launcher.args([&program, &ROUNDS.to_string()]);
        }
        let before = hosts.sent();
        let (success, output) = finish("mpirun", common::spawn(&mut launcher));
        assert!(success, "{output}");
        assert!(output.contains("4 ranks: 64 messages, all sums right"), "{output}");
        assert!(!output.contains("pollux-connectx:"), "{output}");
        // Each rank sends a MiB each round, and a packet has 4,096 bytes at most.
        let packets = before.iter().zip(hosts.sent()).map(|(before, after)| after - before);
        let packets: Vec<_> = packets.collect();
        assert!(packets.iter().all(|count| *count >= 2 * 256 * ROUNDS), "{packets:?}: {output}");
    }
}
