"""Kills one program after the other: each once, in an order of the seed, then each again."""

import random
import threading


class Chaos:
    """``tell(name)`` hears of each kill."""

    def __init__(self, world, seed, pause, tell):
        self.world = world
        self.chance = random.Random(seed)
        self.pause = pause
        self.tell = tell
        self.kills = 0
        self.deck = []
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.over.wait(self.chance.expovariate(1 / self.pause)):
            victim = self.draw()
            self.tell(victim.name)
            self.kills += victim.kill()

    def draw(self):
        if not self.deck:
            self.deck = self.world.victims()
            self.chance.shuffle(self.deck)
        return self.deck.pop()

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()
