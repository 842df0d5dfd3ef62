"""Kills one program after the other, drawn from a seed."""

import random
import threading

RARE = 0.06    # of the kills each of database and broker gets


class Chaos:
    """``tell(name)`` hears of each kill."""

    def __init__(self, world, seed, pause, tell):
        self.world = world
        self.chance = random.Random(seed)
        self.pause = pause
        self.tell = tell
        self.kills = 0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        """Until it is over."""
        while not self.over.wait(self.chance.expovariate(1 / self.pause)):
            victim = self.draw()
            self.tell(victim.name)
            self.kills += victim.kill()

    def draw(self):
        """Any of them; what takes all others with it, less often."""
        number = self.chance.random()
        if number < RARE:
            return self.world.database
        if number < 2 * RARE:
            return self.world.broker
        return self.world.programs[self.chance.choice(sorted(self.world.programs))]

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()
