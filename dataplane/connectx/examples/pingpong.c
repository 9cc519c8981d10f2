/* A ping-pong over a reliable connection with libibverbs alone: client and server send each other
 * messages in turn, and check every byte.
 *
 *   cc -o pingpong pingpong.c -libverbs
 *   pollux exec -- sh -c './pingpong & ./pingpong 127.0.0.1'
 *
 * Without an argument it is the server; with an IPv4 address, the client of the server there. */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { BYTES = 4096, ROUNDS = 1000, TCP_PORT = 18516, CONNECTS_MAX = 100 };

/* What the other end has to know of this one. Both are programs for one kind of machine. */
struct end {
    uint32_t qpn;
    uint16_t lid;
};

static uint8_t out[BYTES], in[BYTES];
static struct ibv_qp *qp;
static struct ibv_cq *cq;
static struct ibv_mr *out_mr, *in_mr;

static void expect(int is_so, const char *what)
{
    if (!is_so) {
        perror(what);
        exit(1);
    }
}

/* A TCP connection, by which the ends tell each other their addresses. */
static int meet(const char *server)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(TCP_PORT)};
    if (server) {
        expect(inet_pton(AF_INET, server, &address.sin_addr) == 1, server);
        for (int i = 0; i < CONNECTS_MAX; i++) {
            int tcp = socket(AF_INET, SOCK_STREAM, 0);
            if (connect(tcp, (void *)&address, sizeof address) == 0)
                return tcp;
            close(tcp);
            usleep(100000);
        }
        expect(0, "connect");
    }
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    expect(bind(listener, (void *)&address, sizeof address) == 0, "bind");
    expect(listen(listener, 1) == 0, "listen");
    return accept(listener, NULL, NULL);
}

static void post_receive(void)
{
    struct ibv_sge sge = {(uintptr_t)in, BYTES, in_mr->lkey};
    struct ibv_recv_wr request = {.sg_list = &sge, .num_sge = 1}, *bad;
    expect(!ibv_post_recv(qp, &request, &bad), "ibv_post_recv");
}

/* INIT, RTR and RTS. The receive for the first message is posted before the peer can send it. */
static void connect_qp(int tcp, uint16_t lid)
{
    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    expect(!ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                                         IBV_QP_ACCESS_FLAGS), "INIT");
    post_receive();
    struct end own = {qp->qp_num, lid}, peer;
    expect(write(tcp, &own, sizeof own) == sizeof own, "write");
    expect(read(tcp, &peer, sizeof peer) == sizeof peer, "read");
    struct ibv_qp_attr rtr = {
        .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = peer.qpn,
        .min_rnr_timer = 12, .ah_attr = {.dlid = peer.lid, .port_num = 1},
    };
    expect(!ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                        IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                                        IBV_QP_MIN_RNR_TIMER), "RTR");
    struct ibv_qp_attr rts = {
        .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
    };
    expect(!ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                        IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                        IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
}

static void wait_for(int completions)
{
    struct ibv_wc wc;
    while (completions > 0) {
        int count = ibv_poll_cq(cq, 1, &wc);
        expect(count >= 0, "ibv_poll_cq");
        expect(count == 0 || wc.status == IBV_WC_SUCCESS, ibv_wc_status_str(wc.status));
        completions -= count;
    }
}

/* The byte of a round at an index; the server's differ from the client's. */
static uint8_t byte_of(int round, int at, int is_server)
{
    return (uint8_t)(round * 31 + at + is_server * 128);
}

static void send_round(int round, int is_server)
{
    for (int at = 0; at < BYTES; at++)
        out[at] = byte_of(round, at, is_server);
    struct ibv_sge sge = {(uintptr_t)out, BYTES, out_mr->lkey};
    struct ibv_send_wr request = {
        .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
    }, *bad;
    expect(!ibv_post_send(qp, &request, &bad), "ibv_post_send");
}

static void check_round(int round, int is_server)
{
    for (int at = 0; at < BYTES; at++)
        expect(in[at] == byte_of(round, at, !is_server), "a byte is not the one that was sent");
}

int main(int count, char **arguments)
{
    int is_server = count < 2;
    struct ibv_device **devices = ibv_get_device_list(NULL);
    expect(devices && devices[0], "there is no adapter");
    struct ibv_context *context = ibv_open_device(devices[0]);
    expect(context != NULL, "ibv_open_device");
    struct ibv_port_attr port;
    expect(!ibv_query_port(context, 1, &port), "ibv_query_port");
    struct ibv_pd *pd = ibv_alloc_pd(context);
    expect(pd != NULL, "ibv_alloc_pd");
    cq = ibv_create_cq(context, 4, NULL, NULL, 0);
    expect(cq != NULL, "ibv_create_cq");
    out_mr = ibv_reg_mr(pd, out, BYTES, 0);
    in_mr = ibv_reg_mr(pd, in, BYTES, IBV_ACCESS_LOCAL_WRITE);
    expect(out_mr && in_mr, "ibv_reg_mr");
    struct ibv_qp_init_attr attributes = {
        .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
    };
    qp = ibv_create_qp(pd, &attributes);
    expect(qp != NULL, "ibv_create_qp");
    int tcp = meet(is_server ? NULL : arguments[1]);
    connect_qp(tcp, port.lid);

    if (is_server)
        wait_for(1);
    for (int round = 0; round < ROUNDS; round++) {
        int is_last = round + 1 == ROUNDS;
        /* A send, and the receive of the answer. */
        if (!is_server)
            send_round(round, 0), wait_for(2);
        check_round(round, is_server);
        if (!is_last)
            post_receive();
        if (is_server)
            send_round(round, 1), wait_for(is_last ? 1 : 2);
    }
    printf("%s: %d messages of %d bytes each way, every byte as it was sent\n",
           is_server ? "server" : "client", ROUNDS, BYTES);

    ibv_destroy_qp(qp);
    ibv_destroy_cq(cq);
    ibv_dereg_mr(out_mr);
    ibv_dereg_mr(in_mr);
    ibv_dealloc_pd(pd);
    ibv_close_device(context);
    ibv_free_device_list(devices);
    return 0;
}
