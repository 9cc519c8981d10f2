/* Ranks exchange messages and check every byte of them.
 *
 * First, neighboring ranks play ping-pong with messages of all protocols of the MPI library: short,
 * copied, and from the user's memory. Then all ranks add vectors. Usage: exchange ROUNDS
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { BYTES_MAX = 1 << 20, VALUES_MAX = 1 << 16 };

static unsigned char sent[BYTES_MAX], received[BYTES_MAX];
static long long terms[VALUES_MAX], sums[VALUES_MAX];

static unsigned char byte_of(int rank, int round, int at)
{
    return (unsigned char)(at * 31 + at / 251 + round * 7 + rank * 101);
}

static void fail(int rank, const char *what, int round, int at)
{
    fprintf(stderr, "rank %d, round %d: wrong %s at %d\n", rank, round, what, at);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void play(int rank, int peer, int bytes, int round)
{
    const int is_first = rank < peer;
    for (int at = 0; at < bytes; at++) {
        sent[at] = byte_of(rank, round, at);
        received[at] = (unsigned char)~byte_of(peer, round, at);
    }
    if (is_first)
        MPI_Send(sent, bytes, MPI_BYTE, peer, round, MPI_COMM_WORLD);
    MPI_Status status;
    MPI_Recv(received, bytes, MPI_BYTE, peer, round, MPI_COMM_WORLD, &status);
    if (!is_first)
        MPI_Send(sent, bytes, MPI_BYTE, peer, round, MPI_COMM_WORLD);
    int count;
    MPI_Get_count(&status, MPI_BYTE, &count);
    if (count != bytes)
        fail(rank, "length", round, count);
    for (int at = 0; at < bytes; at++)
        if (received[at] != byte_of(peer, round, at))
            fail(rank, "byte", round, at);
}

static void add(int rank, int ranks, int values, int round)
{
    for (int at = 0; at < values; at++)
        terms[at] = (long long)(rank + 1) * (at + round + 1);
    MPI_Allreduce(terms, sums, values, MPI_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
    for (int at = 0; at < values; at++)
        if (sums[at] != (long long)ranks * (ranks + 1) / 2 * (at + round + 1))
            fail(rank, "sum", round, at);
}

int main(int argc, char **argv)
{
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const int rounds = argc > 1 ? atoi(argv[1]) : 1;
    /* Half of the ranks are at each host: a peer is at the other one. */
    const int peer = (rank + ranks / 2) % ranks;
    static const int sizes[] = { 0, 1, 8, 100, 1000, 8192, 65537, BYTES_MAX };
    const int kinds = sizeof sizes / sizeof *sizes;
    for (int round = 0; round < rounds; round++)
        for (int kind = 0; kind < kinds; kind++)
            play(rank, peer, sizes[kind], round);
    for (int round = 0; round < rounds; round++)
        for (int values = 1; values <= VALUES_MAX; values *= 16)
            add(rank, ranks, values, round);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("%d ranks: %d messages, all sums right\n", ranks, ranks * rounds * kinds);
    MPI_Finalize();
    return 0;
}
