"""What tools/prepare_data.py writes is what the trainer reads."""

import json

import prepare_data
from system_case import SystemCase
from xml_report import main


class PreparedRun(SystemCase):
    def prepare(self, *flags):
        """Prepares this test's text; returns the meta data."""
        out = self.folder / "tokens"
        self.assertEqual(prepare_data.main([f"--out={out}", *flags, str(self.text)]), 0)
        return out, json.loads((out / "meta.json").read_text())

    def test_files_with_the_header_of_llm_c(self):
        out, meta = self.prepare("--format=llmc", "--val_fraction=0.05", "--documents=file")
        self.assertEqual(meta["dtype"], "uint16")
        cluster = self.cluster({"a": 1, "b": 1})
        spec = cluster.spec_file.read_text()
        cluster.spec_file.write_text(
            spec.replace("eval_sequences: 8", "eval_sequences: 8 format: TOKEN_FORMAT_UINT16")
        )
        cluster.start_coordinator()
        for node in cluster.ranks:
            cluster.start_agent(node)
            held_out = [f"--heldout_data={out / 'val.bin'}"]
            cluster.start_trainers(node, out / "train.bin", held_out)
        summaries = self.finish(cluster)
        self.assert_replicas_equal(summaries)
        self.assertLess(summaries["a"]["val_loss"], summaries["a"]["start_loss"])


if __name__ == "__main__":
    main()
