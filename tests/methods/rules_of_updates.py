"""Rules, written anew as in rules.py, of methods that change gradients or updates."""

from tests.methods.rules import Delayed, Drawn, NoStash, Predicted


class Compensated(Delayed):
    """DC-ASGD with lambda = 0.5: a microbatch's g becomes g + lambda g^2 (w_t - w_v)."""

    def strength(self, name, g):
        return 0.5

    def _gradient(self, t, n, microbatch):
        part, grads = super()._gradient(t, n, microbatch)
        if self.warming(t):
            return part, grads
        made = {}
        for s, names in enumerate(self.stages):
            for name in names:
                g, moved = grads[name], self.versions[t][name] - self.versions[self.late(t, n, s)][name]
                made[name] = g + self.strength(name, g) * g**2 * moved
        return part, made


class CompensatedAdaptively(Compensated):
    """lambda = 2 / sqrt(s + 1e-7), s the moving average of g^2 with 0.95."""

    def strength(self, name, g):
        if not hasattr(self, "squares"):
            self.squares = dict.fromkeys(self.versions[0], 0.0)
        self.squares[name] = 0.95 * self.squares[name] + 0.05 * g**2
        return 2.0 / (self.squares[name] + 1e-7) ** 0.5


class Damped(Predicted):
    """Gap-aware with m = 0.95; PipeDream's reads."""

    def forward_of(self, t, n, s, name):
        return self.versions[self.late(t, n, s)][name]

    backward_of = forward_of

    def squares(self, t, name):
        """The moving average of the squared directions of the updates before t, unbiased."""
        weights = [0.05 * 0.95 ** (t - k) for k in range(1, t + 1)]
        total = sum(a * self.direction(k, name) ** 2 for a, k in zip(weights, range(1, t + 1), strict=True))
        return total / sum(weights)

    def _gradient(self, t, n, microbatch):
        part, grads = super()._gradient(t, n, microbatch)
        added = 0.0 if getattr(self.optimizer, "decoupled", False) else self.optimizer.weight_decay
        made = {}
        for s, names in enumerate(self.stages):
            for name in names:
                w, decay = self.versions[t][name], added * self.versions[t][name] / self.rule.microbatches
                gap = (w - self.versions[self.late(t, n, s)][name]).abs()
                if float(gap.max()) == 0:
                    made[name] = grads[name]
                    continue
                usual = max(rates[s] for rates in self.rates) * (self.squares(t, name).sqrt() + 1e-8)
                made[name] = (grads[name] + decay) / (1 + gap / usual) - decay
        return part, made


class ThrownAway(Drawn):
    """Ringmaster with R = 2: a stage whose delay is 2 or more keeps its weights and its optimizer's state."""

    def _update(self, t, total, rate):
        self.rates.append([rate * self.rate_factor(t, s) for s in range(self.rule.stages)])
        self.counts = getattr(self, "counts", dict.fromkeys(total, 0))
        new = dict(self.versions[t])
        for s, names in enumerate(self.stages):
            if t - self.late(t, 0, s) < 2:
                for name in names:
                    self.counts[name] += 1
                    state = self.moments[name]
                    new[name] = self.optimizer.update(
                        new[name], total[name], self.rates[t][s], state, self.counts[name]
                    )
        self.versions.append(new)
        self.states.append({name: dict(state) for name, state in self.moments.items()})


class Early(NoStash):
    """AMDP: the first P/2 microbatches read w_{t-1}, but not at the last stage."""

    def forward_of(self, t, n, s, name):
        old = n < self.rule.stages // 2 and s < self.rule.stages - 1 and t > self.rule.warmup
        return self.versions[t - 1 if old else t][name]


class Discounted(Delayed):
    """PipeDream's reads, the rate divided by tau^0.5 besides T1."""

    def rate_factor(self, t, s):
        own = 1.0 if self.warming(t) else max(self.tau(s), 1.0) ** -0.5
        return own * super().rate_factor(t, s)
