"""Components on the wire, through real processes: every number format trains, and whichever form an
update travels in, nodes of one and of two ranks end with the same bits."""

from system_case import SystemCase
from xml_report import main

RANKS = {"a": 1, "b": 2}
STEPS = 10
FORMS = ("COMPONENTS", "CONTRIBUTIONS", "SIGN_PLANE", "DENSE")


class Wire(SystemCase):
    def train(self, number_format, form=None):
        """One run; returns the summary of node a. The nodes must end equal."""
        forced = f"update_form: UPDATE_FORM_{form}" if form else ""
        cluster = self.cluster(
            RANKS,
            steps=STEPS,
            name=f"{number_format}-{form}",
            more=f"codec {{ numbers {{ format: NUMBER_FORMAT_{number_format} }} {forced} }}\n",
        )
        cluster.start(self.text)
        summaries = self.finish(cluster)
        cluster.stop()
        self.assert_replicas_equal(summaries)
        summary = summaries["a"]
        self.assertLess(summary["val_loss"], summary["start_loss"])
        print(
            f"{number_format:5} {form or 'the smallest':12} up {summary['up_bytes_per_round']:.0f}"
            f" down {summary['down_bytes_per_round']:.0f} bytes a round,"
            f" state {summary['state_sha256'][:12]}"
        )
        return summary

    def test_the_form_of_an_update_changes_no_bit(self):
        for number_format in ("F16", "SIGN1"):
            free = self.train(number_format)
            down = []
            for form in FORMS:
                with self.subTest(format=number_format, form=form):
                    forced = self.train(number_format, form)
                    self.assertEqual(forced["state_sha256"], free["state_sha256"])
                    self.assertEqual(forced["up_bytes_per_round"], free["up_bytes_per_round"])
                    down.append(forced["down_bytes_per_round"])
            # They really were other forms, and the free one takes the smallest in each round.
            self.assertEqual(len(set(down)), len(FORMS))
            self.assertLessEqual(free["down_bytes_per_round"], min(down))

    def test_fewer_bits_are_fewer_bytes(self):
        formats = ("F32", "BF16", "INT8", "INT4", "SIGN1")
        sent = [self.train(name)["up_bytes_per_round"] for name in formats]
        self.assertEqual(sorted(sent, reverse=True), sent)
        self.assertEqual(len(set(sent)), len(sent))


if __name__ == "__main__":
    main()
