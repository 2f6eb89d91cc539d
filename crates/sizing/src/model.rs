//! The capacity model: how the top rate of a cluster follows from its nodes, CPUs and volumes.
//!
//! Queueing says what saturates: a message costs each node it touches some CPU time and some time
//! at its volume, and the rate at which the busiest part is always busy is the highest. The
//! universal scalability law says what nodes cost each other: a part of the work that they wait for
//! in turn (contention) and one that grows with everybody they must agree with (coherency).
//! Together, for `n` nodes of `v` CPUs, `r = min(3, n)` copies of each message, and X messages a
//! second:
//!
//! ```text
//!   1/X  =  cpu · r/(n·v)  +  volume[kind] · r/n  +  contention · (1 − 1/n)  +  coherency · (n − 1)
//! ```
//!
//! Why this one: every term is a time a message that one can measure and argue about, none may be
//! negative, and the sum is linear in them, so the fit is exact, has one answer, and says itself
//! how far it can be trusted. A curve with more freedom would fit 21 points better and predict a
//! 22nd worse. Invariant: the same points give the same parameters, whatever their order but for
//! the last bits.

use serde::Serialize;

/// Copies of a message in a quorum queue.
pub const COPIES: f64 = 3.0;

/// Kinds of volumes in one fit: each is a parameter, and parameters are tried in all combinations.
pub const VOLUMES_MAX: usize = 8;

/// Parts of the band that are tried for being inside of the physical world: a time is never below
/// this part of the predicted one.
const TIME_PART_MIN: f64 = 0.05;

/// A cluster as the model sees it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shape {
    /// Nodes.
    pub nodes: f64,
    /// CPUs of a node.
    pub vcpus: f64,
    /// Kind of volume.
    pub volume: String,
}

/// A shape with its measured top rate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Cluster and volume, as people say it.
    pub name: String,
    /// The cluster without its volume: what a leave-one-cluster-out leaves out.
    pub cluster: String,
    /// What it is.
    pub shape: Shape,
    /// Messages a second.
    pub rate: f64,
}

/// A predicted rate with its band.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// Most likely.
    pub rate: f64,
    /// Nine of ten measurements are above this.
    pub low: f64,
    /// And below this.
    pub high: f64,
}

/// A term of the model with its fitted time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Parameter {
    /// What it is.
    pub name: String,
    /// Microseconds a message.
    pub micros: f64,
}

/// A fitted model.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    volumes: Vec<String>,
    /// Seconds a message, in the order of `terms`.
    times: Vec<f64>,
    /// Relative error of a point, as a standard deviation.
    sigma: f64,
    /// Student's factor for the band.
    factor: f64,
    /// Inverse of the normal matrix over the terms that are not zero, with their places.
    inverse: Vec<Vec<f64>>,
    active: Vec<usize>,
}

impl Model {
    /// Fits `points`. The error says what is missing.
    pub fn fit(points: &[Point]) -> Result<Model, String> {
        let mut volumes: Vec<String> = points.iter().map(|point| point.shape.volume.clone()).collect();
        volumes.sort();
        volumes.dedup();
        if volumes.len() > VOLUMES_MAX {
            return Err(format!("{} kinds of volumes; at most {VOLUMES_MAX} can be fitted at once", volumes.len()));
        }
        let terms = 3 + volumes.len();
        if points.len() < terms {
            return Err(format!("{} configurations are too few for {terms} terms of the model", points.len()));
        }
        // Each row is scaled by its rate, so that an error is a part of the rate: 10 % of 30k and
        // of 60k weigh the same.
        let rows: Vec<Vec<f64>> = points
            .iter()
            .map(|point| features(&point.shape, &volumes).into_iter().map(|term| term * point.rate).collect())
            .collect();
        let (times, active) = least_squares_not_negative(&rows);
        let residual = |row: &Vec<f64>| dot(row, &times) - 1.0;
        let freedom = (points.len() - active.len()).max(1);
        let sum: f64 = rows.iter().map(|row| residual(row).powi(2)).sum();
        let normal = normal_matrix(&rows, &active);
        let inverse = invert(normal).ok_or("the configurations are too alike to tell the terms of the model apart")?;
        let sigma = (sum / freedom as f64).sqrt();
        Ok(Model { volumes, times, sigma, factor: student(freedom), inverse, active })
    }

    /// The terms with their times.
    pub fn parameters(&self) -> Vec<Parameter> {
        let names = ["cpu: time of one CPU, a message and copy".to_owned()];
        let volumes =
            self.volumes.iter().map(|volume| format!("{volume}: time at the volume and its node, a message and copy"));
        let law = ["contention: waiting in turn", "coherency: agreeing with each further node"];
        let names = names.into_iter().chain(volumes).chain(law.map(str::to_owned));
        names.zip(&self.times).map(|(name, time)| Parameter { name, micros: time * 1e6 }).collect()
    }

    /// Kinds of volumes that were fitted.
    pub fn volumes(&self) -> &[String] {
        &self.volumes
    }

    /// Standard deviation of the relative error over the fitted points.
    pub fn sigma(&self) -> f64 {
        self.sigma
    }

    /// Predicts; `None` for a kind of volume that was not fitted.
    pub fn predict(&self, shape: &Shape) -> Option<Estimate> {
        self.volumes.contains(&shape.volume).then(|| self.estimate(shape, 0.0))
    }

    /// Predicts with a further relative error of `more`, independent of the model's own.
    pub fn estimate(&self, shape: &Shape, more: f64) -> Estimate {
        let row = features(shape, &self.volumes);
        let time = dot(&row, &self.times);
        assert!(time > 0.0, "a fitted model has a term above zero, and every shape takes part in it");
        let rate = 1.0 / time;
        let scaled: Vec<f64> = self.active.iter().map(|at| row[*at] * rate).collect();
        // How far the shape lies from what was fitted.
        let lever: f64 = self.inverse.iter().zip(&scaled).map(|(line, x)| x * dot(line, &scaled)).sum();
        let error = self.factor * (self.sigma.powi(2) * (1.0 + lever.max(0.0)) + more.powi(2)).sqrt();
        Estimate { rate, low: rate / (1.0 + error), high: rate / (1.0 - error).max(TIME_PART_MIN) }
    }
}

/// The terms of a shape: what each time is multiplied by.
fn features(shape: &Shape, volumes: &[String]) -> Vec<f64> {
    let (n, v) = (shape.nodes, shape.vcpus);
    let copies = COPIES.min(n);
    let mut row = vec![copies / (n * v)];
    row.extend(volumes.iter().map(|volume| if *volume == shape.volume { copies / n } else { 0.0 }));
    row.extend([1.0 - 1.0 / n, n - 1.0]);
    row
}

/// What leaving points out and predicting them gives.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Validation {
    /// What was left out at a time.
    pub left_out: &'static str,
    /// Root of the mean square of relative errors.
    pub rms: f64,
    /// Mean: above zero when the model promises too much.
    pub bias: f64,
    /// Largest.
    pub worst: f64,
    /// Points whose measured rate lay inside of the band.
    pub inside: usize,
    /// Point by point: name, measured, predicted without it.
    pub points: Vec<(String, f64, Estimate)>,
}

/// Leaves each point out in turn, or each cluster with all its volumes, fits the others and
/// predicts it.
pub fn validate(points: &[Point], by_cluster: bool) -> Result<Validation, String> {
    let mut predicted = Vec::new();
    for point in points {
        let is_left = |other: &&Point| match by_cluster {
            true => other.cluster != point.cluster,
            false => other.name != point.name,
        };
        let others: Vec<Point> = points.iter().filter(is_left).cloned().collect();
        let model = Model::fit(&others)?;
        let estimate = model.predict(&point.shape);
        let estimate = estimate.ok_or_else(|| format!("{} is the only one with its kind of volume", point.name))?;
        predicted.push((point.name.clone(), point.rate, estimate));
    }
    let left_out = if by_cluster { "cluster with all its volumes" } else { "configuration" };
    Ok(Validation::of(left_out, predicted))
}

impl Validation {
    /// What these errors say. Each point: name, measured, predicted without it.
    pub(crate) fn of(left_out: &'static str, points: Vec<(String, f64, Estimate)>) -> Validation {
        let errors: Vec<f64> = points.iter().map(|(_, measured, estimate)| estimate.rate / measured - 1.0).collect();
        let count = errors.len().max(1) as f64;
        let larger = |worst: f64, error: f64| if error.abs() > worst.abs() { error } else { worst };
        Validation {
            left_out,
            rms: (errors.iter().map(|error| error * error).sum::<f64>() / count).sqrt(),
            bias: errors.iter().sum::<f64>() / count,
            worst: errors.iter().copied().fold(0.0, larger),
            inside: points.iter().filter(|(_, measured, e)| (e.low..=e.high).contains(measured)).count(),
            points,
        }
    }
}

/// Least squares of `row · times = 1` with no time below zero, and the places of those above it.
///
/// Every combination of terms is solved and the best lawful one kept: with at most
/// [`VOLUMES_MAX`] + 3 terms that is quick, and unlike a descent it cannot stop at a place of its
/// own.
fn least_squares_not_negative(rows: &[Vec<f64>]) -> (Vec<f64>, Vec<usize>) {
    let terms = rows[0].len();
    let mut best: Option<(f64, Vec<f64>, Vec<usize>)> = None;
    for subset in 1_u32..1 << terms {
        let active: Vec<usize> = (0..terms).filter(|at| subset >> at & 1 == 1).collect();
        let Some(inverse) = invert(normal_matrix(rows, &active)) else { continue };
        let sums: Vec<f64> = active.iter().map(|at| rows.iter().map(|row| row[*at]).sum()).collect();
        let solved: Vec<f64> = inverse.iter().map(|line| dot(line, &sums)).collect();
        if solved.iter().any(|time| *time < 0.0) {
            continue;
        }
        let mut times = vec![0.0; terms];
        for (at, time) in active.iter().zip(&solved) {
            times[*at] = *time;
        }
        let sum: f64 = rows.iter().map(|row| (dot(row, &times) - 1.0).powi(2)).sum();
        // A term must earn its place by more than the last bits.
        if best.as_ref().is_none_or(|(least, _, _)| sum < least * (1.0 - 1e-9)) {
            best = Some((sum, times, active));
        }
    }
    let (_, times, active) = best.expect("each term alone has a lawful solution: rows and sums are above zero");
    (times, active)
}

fn normal_matrix(rows: &[Vec<f64>], active: &[usize]) -> Vec<Vec<f64>> {
    let cell = |i: usize, j: usize| rows.iter().map(|row| row[i] * row[j]).sum();
    active.iter().map(|i| active.iter().map(|j| cell(*i, *j)).collect()).collect()
}

/// Gauss-Jordan on a small symmetric matrix; `None` when it is singular for all that doubles can
/// tell.
fn invert(mut matrix: Vec<Vec<f64>>) -> Option<Vec<Vec<f64>>> {
    let size = matrix.len();
    // Terms differ by orders of magnitude: unit diagonals make the pivots comparable.
    let scale: Vec<f64> = (0..size).map(|at| matrix[at][at].sqrt()).collect();
    if scale.iter().any(|scale| !scale.is_normal()) {
        return None;
    }
    let mut inverse = vec![vec![0.0; size]; size];
    for i in 0..size {
        for j in 0..size {
            matrix[i][j] /= scale[i] * scale[j];
        }
        inverse[i][i] = 1.0;
    }
    for at in 0..size {
        let pivot = (at..size).max_by(|a, b| matrix[*a][at].abs().total_cmp(&matrix[*b][at].abs()))?;
        if matrix[pivot][at].abs() < 1e-10 {
            return None;
        }
        matrix.swap(at, pivot);
        inverse.swap(at, pivot);
        let divisor = matrix[at][at];
        for j in 0..size {
            matrix[at][j] /= divisor;
            inverse[at][j] /= divisor;
        }
        for i in (0..size).filter(|i| *i != at) {
            let factor = matrix[i][at];
            for j in 0..size {
                matrix[i][j] -= factor * matrix[at][j];
                inverse[i][j] -= factor * inverse[at][j];
            }
        }
    }
    for i in 0..size {
        for j in 0..size {
            inverse[i][j] /= scale[i] * scale[j];
        }
    }
    Some(inverse)
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Student's t for a band that holds nine of ten, by degrees of freedom.
pub(crate) fn student(freedom: usize) -> f64 {
    const TABLE: [f64; 10] = [6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83, 1.81];
    match freedom {
        0 => TABLE[0],
        1..=10 => TABLE[freedom - 1],
        11..=15 => 1.77,
        16..=30 => 1.72,
        _ => 1.66,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    /// Rates of a world that obeys the model exactly.
    fn world(times: [f64; 5], noise: &[f64]) -> Vec<Point> {
        let volumes = ["a".to_owned(), "b".to_owned()];
        let mut points = Vec::new();
        for nodes in [1.0, 3.0, 5.0, 7.0, 9.0] {
            for vcpus in [2.0, 8.0, 16.0] {
                for volume in &volumes {
                    let shape = Shape { nodes, vcpus, volume: volume.clone() };
                    let time = dot(&features(&shape, &volumes), &times);
                    let part = 1.0 + noise.get(points.len()).copied().unwrap_or(0.0);
                    let cluster = format!("{nodes}x{vcpus}");
                    points.push(Point { name: format!("{cluster}/{volume}"), cluster, shape, rate: part / time });
                }
            }
        }
        points
    }

    proptest! {
        #[test]
        fn a_world_that_obeys_the_model_is_found_again(
            cpu in 10.0..500.0_f64, a in 1.0..50.0_f64, b in 1.0..50.0_f64, contention in 0.0..20.0_f64, coherency in 0.0..2.0_f64
        ) {
            let times = [cpu, a, b, contention, coherency].map(|micros| micros * 1e-6);
            let model = Model::fit(&world(times, &[])).unwrap();
            for (found, time) in model.parameters().iter().zip(times) {
                prop_assert!((found.micros - time * 1e6).abs() < 1e-3 * (1.0 + time * 1e6), "{found:?} {time}");
            }
        }

        #[test]
        fn no_term_is_negative_and_every_band_holds_its_estimate(noise in prop::collection::vec(-0.3..0.3_f64, 30)) {
            let points = world([100e-6, 20e-6, 25e-6, 4e-6, 0.3e-6], &noise);
            let model = Model::fit(&points).unwrap();
            prop_assert!(model.parameters().iter().all(|found| found.micros >= 0.0));
            for point in &points {
                let Estimate { rate, low, high } = model.predict(&point.shape).unwrap();
                prop_assert!(0.0 < low && low <= rate && rate <= high && high.is_finite());
            }
        }

        #[test]
        fn more_cpus_never_predict_less(noise in prop::collection::vec(-0.2..0.2_f64, 30), nodes in 1.0..9.0_f64, v in 1.0..64.0_f64) {
            let model = Model::fit(&world([100e-6, 20e-6, 25e-6, 4e-6, 0.3e-6], &noise)).unwrap();
            let rate = |vcpus: f64| model.predict(&Shape { nodes, vcpus, volume: "a".to_owned() }).unwrap().rate;
            prop_assert!(rate(v * 2.0) >= rate(v));
        }

        #[test]
        fn the_order_of_points_does_not_matter(noise in prop::collection::vec(-0.3..0.3_f64, 30), turn in 0..30_usize) {
            let mut points = world([100e-6, 20e-6, 25e-6, 4e-6, 0.3e-6], &noise);
            let before = Model::fit(&points).unwrap();
            points.rotate_left(turn);
            let after = Model::fit(&points).unwrap();
            for (a, b) in before.parameters().iter().zip(after.parameters()) {
                prop_assert!((a.micros - b.micros).abs() < 1e-6 * (1.0 + a.micros));
            }
        }
    }

    #[test]
    fn too_few_or_too_many_kinds_are_refused() {
        let points = world([1e-4; 5], &[]);
        assert!(Model::fit(&points[..4]).unwrap_err().starts_with("4 configurations are too few"));
        assert!(Model::fit(&[]).is_err());
        let mut many = points.clone();
        for (at, point) in many.iter_mut().enumerate() {
            point.shape.volume = format!("v{at}");
        }
        assert!(Model::fit(&many).unwrap_err().contains("kinds of volumes"));
    }

    #[test]
    fn nine_of_ten_measurements_with_noise_lie_in_the_band() {
        // A fixed sequence in place of a random one: the fractional parts of multiples of the
        // golden ratio, through a triangle.
        let draw =
            |at: usize| ((at as f64 * 0.618_033_988_75).fract() + (at as f64 * 0.754_877_666).fract() - 1.0) * 0.2;
        let noise: Vec<f64> = (1..=30).map(draw).collect();
        let validation = validate(&world([100e-6, 20e-6, 25e-6, 4e-6, 0.3e-6], &noise), false).unwrap();
        assert!(validation.inside >= 25, "{} of 30", validation.inside);
    }
}
