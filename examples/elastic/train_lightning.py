"""A classifier of made-up images with Lightning, elastic. Argument: the number of epochs."""

import sys

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lucid_lightning


class Classifier(lightning.LightningModule):
    """Two classes of images."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 2))

    def training_step(self, batch, _):
        """Its loss."""
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        """Plain gradient descent."""
        return torch.optim.SGD(self.parameters(), lr=0.01)


lightning.seed_everything(0)
images = torch.randn(2048, 1, 16, 16)
data = TensorDataset(images, (images.mean(dim=(1, 2, 3)) > 0).long())
loader = DataLoader(data, batch_size=lucid_lightning.share(64), shuffle=True)
trainer = lightning.Trainer(
    max_epochs=int(sys.argv[1]), callbacks=[lucid_lightning.Elastic(64)], logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, **lucid_lightning.sizes(),
)  # fmt: skip
trainer.fit(Classifier(), loader, ckpt_path=lucid_lightning.last())
