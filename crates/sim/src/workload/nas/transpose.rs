//! The NAS kernels IS and FT: all-to-alls with long blocks, and some short collectives.

use super::{DOUBLE, Running};

impl Running<'_> {
    /// One ranking of the keys. An allreduce sums the sizes of buckets (with five places for tests). An
    /// all-to-all tells each rank how many keys come; then the keys come, evenly distributed here. Source:
    /// `is.c`, `rank`.
    pub(super) async fn integer_sort(&self) {
        const INTEGER: u64 = 4;
        let [keys, _, buckets] = self.points.map(u64::from);
        let n = u64::from(self.group.size());
        self.work(2);
        self.library.allreduce(self.group, (buckets + 5) * INTEGER).await;
        self.library.alltoall(self.group, INTEGER).await;
        self.library.alltoallv(self.group, keys / (n * n) * INTEGER).await;
        self.work(2);
    }

    /// One inverse transform. An all-to-all transposes the slabs, then a checksum of one complex number is
    /// summed at rank 0. Source: `ft.f`, one-dimensional layout.
    pub(super) async fn fourier(&self) {
        const COMPLEX: u64 = 2 * DOUBLE;
        let points: u64 = self.points.map(u64::from).iter().product();
        let n = u64::from(self.group.size());
        self.work(2);
        self.library.alltoall(self.group, points / (n * n) * COMPLEX).await;
        self.work(2);
        self.library.reduce(self.group, 0, COMPLEX).await;
    }
}
