"""What the tests in a box share: they are skipped, with the reason, where no box can run."""

import unittest

from system_case import ROOT, SystemCase
from wan_box import WanBox

RELAY = ROOT / "tools/wan/relay"
REASON = WanBox.why_not(RELAY)


@unittest.skipIf(REASON, f"WAN in a box cannot run: {REASON}")
class WanCase(SystemCase):
    """Boxes that go when the test ends."""

    def box(self, links, seed=1):
        """A box with the relay of this build."""
        return self.enterContext(WanBox(links, seed=seed, relay=RELAY))
