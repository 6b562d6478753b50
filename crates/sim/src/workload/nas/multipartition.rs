//! The NAS kernels BT and SP: each rank has a diagonal of cells, so that all ranks work at every stage of a sweep
//! along any axis.

use super::{DOUBLE, Running, TAG};

impl Running<'_> {
    /// One time step of BT: exchanges faces. Then, along each axis, it sends 30 numbers forwards for each
    /// point of a cell's face, and 5 backwards. Source: BT, `copy_faces.f`, `x_solve.f` (`(BLOCK_SIZE + 1) *
    /// BLOCK_SIZE`).
    pub(super) async fn block_tridiagonal(&self) {
        self.multipartition(30, 5).await;
    }

    /// One time step of SP: the same with 22 and 10 numbers. Source: SP, `x_solve.f`.
    pub(super) async fn scalar_pentadiagonal(&self) {
        self.multipartition(22, 10).await;
    }

    async fn multipartition(&self, forward_numbers: u64, backward_numbers: u64) {
        let cells = self.rank.size().isqrt();
        let face_points = u64::from(self.points[0] / cells).pow(2);
        let neighbours = neighbours(self.rank.rank(), cells);
        let stages = cells - 1;
        let parts = 1 + 6 * cells;
        self.work(parts);
        // Two layers of five numbers, of all cells but the one at the surface, to all six neighbours at the
        // same time.
        let bytes = DOUBLE * 2 * 5 * face_points * u64::from(stages);
        if stages > 0 {
            let mut handles = Vec::new();
            for (axis, [before, after]) in (0..).zip(neighbours) {
                handles.push(self.rank.irecv(Some(before), TAG + 2 * axis, bytes));
                handles.push(self.rank.irecv(Some(after), TAG + 2 * axis + 1, bytes));
            }
            for (axis, [before, after]) in (0..).zip(neighbours) {
                handles.push(self.rank.isend(after, TAG + 2 * axis, bytes));
                handles.push(self.rank.isend(before, TAG + 2 * axis + 1, bytes));
            }
            self.rank.wait_all(handles).await;
        }
        for [before, after] in neighbours {
            let sweeps = [(before, after, forward_numbers), (after, before, backward_numbers)];
            for (from, to, numbers) in sweeps {
                for _ in 0..stages {
                    self.work(parts);
                    let bytes = DOUBLE * numbers * face_points;
                    self.rank.sendrecv(to, from, TAG, bytes, bytes).await;
                }
                self.work(parts);
            }
        }
    }
}

/// Predecessor and successor of a rank along each axis. Source: `define.f`.
fn neighbours(rank: u32, cells: u32) -> [[u32; 2]; 3] {
    let (i, j) = (rank % cells, rank / cells);
    let at = |i: u32, j: u32| i % cells + cells * (j % cells);
    let back = cells - 1;
    [
        [at(i + back, j), at(i + 1, j)],
        [at(i, j + back), at(i, j + 1)],
        [at(i + 1, j + back), at(i + back, j + 1)],
    ]
}
