// noise.c - averages of the two estimates, and the interval of their ratio. See noise.h.
#include "train/noise.h"

#include "base/text.h"

#include <math.h>
#include <stdio.h>

// Weight of the past per measurement: one made 50 measurements ago counts about a third. The scale
// grows while a model learns, so an average over the whole run would describe no moment of it.
static const double KEEP = 0.98;

bool noise_add(struct noise_scale *s, const struct noise_sample *x) {
    const double b = x->small_tokens, B = x->all_tokens;
    if (!(b > 0 && B > b) || !isfinite(x->small_square) || !isfinite(x->all_square))
        return false;
    const double trace = (x->small_square - x->all_square) / (1 / b - 1 / B);
    const double gradient = (B * x->all_square - b * x->small_square) / (B - b);
    s->n++;
    s->weight = KEEP * s->weight + 1;
    s->weight2 = KEEP * KEEP * s->weight2 + 1;
    const double share = 1 / s->weight, dt = trace - s->trace, dg = gradient - s->gradient;
    s->trace += share * dt;
    s->gradient += share * dg;
    s->var_t = (1 - share) * (s->var_t + share * dt * dt);
    s->var_g = (1 - share) * (s->var_g + share * dg * dg);
    s->cov = (1 - share) * (s->cov + share * dt * dg);
    s->batch += share * (B - s->batch);
    s->tokens += B;
    s->sequences += x->sequences;
    return true;
}

// The 97.5 % point of Student's t distribution, from that of the normal distribution (Cornish and
// Fisher's expansion; within 0.1 % from 4 degrees of freedom on).
static double student(double freedom) {
    const double z = 1.959963985, z3 = z * z * z, z5 = z3 * z * z, z7 = z5 * z * z;
    return z + (z3 + z) / (4 * freedom) + (5 * z5 + 16 * z3 + 3 * z) / (96 * freedom * freedom) +
           (3 * z7 + 19 * z5 + 17 * z3 - 15 * z) / (384 * freedom * freedom * freedom);
}

// Fieller's interval of a ratio of two correlated means: all R for which trace - R gradient may be
// 0. If the gradient itself may be 0, there is no upper end.
static void interval(const struct noise_scale *s, struct noise_estimate *out) {
    const double effective = s->weight * s->weight / s->weight2;
    const double q = student(effective - 1), per_mean = q * q / (effective - 1);
    const double t = s->trace, g = s->gradient;
    const double a = g * g - per_mean * s->var_g, b = t * g - per_mean * s->cov,
                 c = t * t - per_mean * s->var_t, root = b * b - a * c;
    out->tokens_low = 0;
    out->tokens_high = INFINITY;
    if (a > 0 && g > 0 && root >= 0) {
        out->tokens_low = fmax((b - sqrt(root)) / a, 0);
        out->tokens_high = fmax((b + sqrt(root)) / a, 0);
    } else if (a < 0 && root > 0) {
        // Everything outside of an interval is possible. If that interval contains 0, its upper end
        // is the lower bound.
        const double r1 = (b + sqrt(root)) / a, r2 = (b - sqrt(root)) / a;
        if (fmin(r1, r2) <= 0)
            out->tokens_low = fmax(fmax(r1, r2), 0);
    }
}

void noise_estimate_of(const struct noise_scale *s, struct noise_estimate *out) {
    *out = (struct noise_estimate){.n = s->n,
                                   .tokens = NAN,
                                   .sequences = NAN,
                                   .tokens_low = NAN,
                                   .tokens_high = NAN,
                                   .trace = s->n > 0 ? s->trace : NAN,
                                   .gradient_square = s->n > 0 ? s->gradient : NAN,
                                   .batch_tokens = s->n > 0 ? s->batch : NAN};
    if (s->n >= NOISE_LEAST)
        interval(s, out);
    if (s->n > 0 && s->gradient > 0 && s->trace > 0) {
        out->tokens = s->trace / s->gradient;
        out->sequences = out->tokens * s->sequences / s->tokens;
    }
}

// ---------------------------------------------------------------- output

static const char *advice(const struct noise_estimate *x) {
    if (!(x->batch_tokens > 0) || isnan(x->tokens_low))
        return "";
    return x->batch_tokens < x->tokens_low    ? "; a larger batch would still help"
           : x->batch_tokens > x->tokens_high ? "; that is more than needed: a smaller batch "
                                                "learns as much from fewer tokens"
                                              : "";
}

const char *noise_text(char out[NOISE_TEXT_BYTES], const struct noise_estimate *x) {
    char scale[TEXT_UNIT_BYTES], low[TEXT_UNIT_BYTES], high[TEXT_UNIT_BYTES],
        batch[TEXT_UNIT_BYTES], between[96] = "";
    if (x->n == 0) {
        snprintf(out, NOISE_TEXT_BYTES, "not measured");
        return out;
    }
    text_count(batch, x->batch_tokens);
    if (isfinite(x->tokens_high))
        snprintf(between, sizeof between, ", 95 %% between %s and %s",
                 text_count(low, x->tokens_low), text_count(high, x->tokens_high));
    else if (!isnan(x->tokens_low))
        snprintf(between, sizeof between, ", 95 %% above %s, no upper bound yet",
                 text_count(low, x->tokens_low));
    if (isnan(x->tokens))
        snprintf(out, NOISE_TEXT_BYTES, "not determined by %lld measurement%s of %s tokens%s: %s",
                 (long long)x->n, x->n == 1 ? "" : "s", batch, between,
                 x->gradient_square > 0 ? "the noise is too small to measure"
                                        : "the noise hides the gradient");
    else
        snprintf(out, NOISE_TEXT_BYTES,
                 "%s tokens (%.3g sequences)%s, %lld measurement%s; a step trains %s%s",
                 text_count(scale, x->tokens), x->sequences, between, (long long)x->n,
                 x->n == 1 ? "" : "s", batch, advice(x));
    return out;
}

void noise_put_members(const struct noise_estimate *x, struct json_writer *w) {
    json_member_double(w, "tokens", x->tokens);
    json_member_double(w, "sequences", x->sequences);
    json_member_double(w, "tokens_low95", x->tokens_low);
    json_member_double(w, "tokens_high95", x->tokens_high); // null: no upper end
    json_member_i64(w, "measurements", x->n);
    json_member_double(w, "batch_tokens", x->batch_tokens);
    json_member_double(w, "trace", x->trace);
    json_member_double(w, "gradient_square", x->gradient_square);
}
