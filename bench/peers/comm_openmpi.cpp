// all_reduce by OpenMPI: run under mpirun with sizes in bytes as arguments, prints "bytes seconds" for each.
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  for (int a = 1; a < argc; ++a) {
    long bytes = std::atol(argv[a]);
    std::vector<float> x(static_cast<size_t>(bytes) / 4, 0.f);
    auto once = [&] {
      MPI_Allreduce(MPI_IN_PLACE, x.data(), static_cast<int>(x.size()), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    };
    auto many = [&](long n) {
      MPI_Barrier(MPI_COMM_WORLD);
      double begin = MPI_Wtime();
      for (long i = 0; i < n; ++i) once();
      return MPI_Wtime() - begin;
    };
    many(3);
    double first = many(3) / 3;
    MPI_Bcast(&first, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    long n = std::clamp(static_cast<long>(0.03 / first), 3L, 20000L);
    std::vector<double> samples;
    for (int s = 0; s < 5; ++s) samples.push_back(many(n) / static_cast<double>(n));
    std::sort(samples.begin(), samples.end());
    if (rank == 0) std::printf("%ld %.9g\n", bytes, samples[2]);
  }
  MPI_Finalize();
}
