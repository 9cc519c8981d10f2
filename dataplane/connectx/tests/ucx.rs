//! UCX, which Open MPI and others run over, on the ConnectX in software: what it finds, and its own
//! performance test at two hosts of a fabric, by way of libibverbs and by work queues of its own
//! (mlx5dv).
//!
//! `scripts/host-setup --hca` installs it.

mod common;

use common::{Hosts, finish};

const DEVICE: &str = "UCX_NET_DEVICES=mlx5_0:1";
/// Transports for `UCX_TLS`. A reliable connection is made by datagrams.
const TRANSPORTS: [&str; 4] =
    ["rc_verbs,ud_verbs:aux", "ud_verbs", "rc_mlx5,ud_mlx5:aux", "ud_mlx5"];

/// Runs tests of `ucx_perftest` for all transports.
fn run_all(hosts: &Hosts, tests: &[&str]) {
    for transport in TRANSPORTS {
        let transport = format!("UCX_TLS={transport}");
        for test in tests {
            let program = [DEVICE, &transport, "UCX_LOG_LEVEL=warn", "ucx_perftest", "-w", "4"];
            let arguments = program.into_iter().chain(test.split(' ')).collect::<Vec<_>>();
            let before = hosts.sent();
            let output = hosts.run_pair("env", &arguments);
            assert!(output.contains("Final:"), "{transport} {test}: {output}");
            for word in ["ERROR", "WARN", "pollux-connectx:"] {
                assert!(!output.contains(word), "{transport} {test}: {output}");
            }
            let after = hosts.sent();
            assert!(after > before, "{transport} {test} has sent nothing: {output}");
        }
    }
}

mod ucx_info {
    use super::{Hosts, finish};

    #[test]
    fn finds_the_transports_of_the_adapter() {
        let hosts = Hosts::new();
        let child = hosts.start(0, "env", &["UCX_LOG_LEVEL=warn", "ucx_info", "-d"]);
        let (success, output) = finish("ucx_info", child);
        assert!(success, "{output}");
        let mut transports = Vec::new();
        let mut lines = output.lines().map(|line| line.trim_start_matches(['#', ' ']));
        while let Some(line) = lines.next() {
            if let Some(transport) = line.strip_prefix("Transport: ")
                && lines.next().is_some_and(|next| next == "Device: mlx5_0:1")
            {
                transports.push(transport);
            }
        }
        // Not dc_mlx5: it needs dynamically connected queue pairs.
        assert_eq!(transports, ["rc_verbs", "rc_mlx5", "ud_verbs", "ud_mlx5"], "{output}");
        for word in ["ERROR", "WARN", "pollux-connectx:"] {
            assert!(!output.contains(word), "{output}");
        }
    }
}

mod ucx_perftest {
    use super::{Hosts, run_all};

    #[test]
    fn sends_messages_by_all_transports() {
        let hosts = Hosts::new();
        run_all(&hosts, &["-t tag_lat -n 50 -s 64", "-t tag_bw -n 4 -s 1048576"]);
    }

    /// Not of the tier `quick`: it takes minutes.
    #[test]
    fn runs_all_operations_by_all_transports() {
        let hosts = Hosts::new();
        let tests = [
            "-t tag_sync_lat -n 100 -s 8",
            "-t tag_bw -n 200 -s 2000",
            "-t stream_bw -n 200 -s 2000",
            "-t ucp_am_lat -n 100 -s 8",
            "-t ucp_am_bw -n 10 -s 1048576",
            "-t ucp_put_lat -n 100 -s 8",
            "-t ucp_put_bw -n 10 -s 1048576",
            "-t ucp_get -n 10 -s 1048576",
            "-t ucp_add -n 100 -s 8",
            "-t ucp_fadd -n 100 -s 8",
            "-t ucp_swap -n 100 -s 4",
            "-t ucp_cswap -n 100 -s 8",
        ];
        run_all(&hosts, &tests);
    }
}
